"""Parameters of a query that a route does not have are ignored, and named in the answer's header."""

import pytest

HEADER = "motet-ignored-parameters"


@pytest.mark.parametrize(
    ("path", "named"),
    [
        ("/v1/usage?start=2027-01-01T00:00:00Z", "start"),
        ("/v1/tasks?limit=3&label=a=b&label=c=d&status=queued&utm_source=x&limits=2&utm_source=y", "utm_source, limits"),
        ("/v1/tasks?limit=3", None),
        ("/v1/tasks?", None),
        ("/v1/tasks?limit=-1&start=2", "start"),  # beside a refusal
        ("/v1/tasks/task_none?wait=0&waits=1", "waits"),
        ("/v1/tasks?%0d%0aSet-Cookie%3a%20a=1&%C3%A9=2&a,b=3&%ff=1", "%0D%0ASet-Cookie%3A%20a, %C3%A9, a%2Cb, %EF%BF%BD"),
        ("/v1/tasks?" + "&".join(f"{'x' * 70}{n}=1" for n in range(20)), "x" * 64),
        ("/v1/tasks?" + "&".join(f"x{n}=1" for n in range(20)), ", ".join(f"x{n}" for n in range(16))),
        ("/v1/nothing?start=1", None),
        ("/openai/v1/fine_tuning/jobs?start=1", None),
        ("/livez?start=1", None),
    ],
)
def test_what_a_route_does_not_have_is_named(tenant, path, named):
    answer = tenant.get(path)
    assert answer.status_code < 500
    assert answer.headers.get(HEADER) == named


def test_a_request_that_changes_something_is_done_all_the_same(tenant):
    made = tenant.post("/v1/webhooks?dry_run=true", json={"url": "https://1.1.1.1/", "events": ["task.succeeded"]})
    assert (made.status_code, made.headers[HEADER]) == (201, "dry_run")
    gone = tenant.delete(f"/v1/webhooks/{made.json()['id']}?force=1")
    assert (gone.status_code, gone.headers[HEADER]) == (204, "force")
