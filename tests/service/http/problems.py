"""Reads problem responses."""


def problem_of(response, status: int, code: str) -> dict:
    """The body of a problem response that has this status and code, with every member that all problems have."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    body = response.json()
    assert (body["status"], body["code"], body["type"]) == (status, code, f"urn:motet:problem:{code}")
    assert body["title"]
    assert body["detail"]
    assert body["request_id"] == response.headers["x-request-id"]
    return body
