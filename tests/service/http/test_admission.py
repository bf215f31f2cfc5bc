"""No body is read before its sender is admitted, whatever the route, and of an unknown sender little."""

import re

import pytest
from fastapi.routing import APIRoute

from service.app import routes
from service.http.body_middleware import MAX_BODY_BYTES, MAX_UNKNOWN_BYTES, _gates
from service.tenants.api_keys import Scope
from tests.service.http.problems import problem_of

JSON = {"content-type": "application/json"}
UNREADABLE = '{"'
SENT = [
    (method, route)
    for route in routes().router.routes
    if isinstance(route, APIRoute)
    for method in sorted(route.methods - {"GET", "HEAD"})
]
# they give whoever knows a secret of the body or path what it opens, or change nothing but a cookie
OPEN = {
    "/internal/v1/nodes",
    "/v1/sign-in/device",
    "/v1/sign-in/device/token",
    "/invitations/{secret}",
    "/sign-in",
    "/sign-out",
    "/theme",
}


def _gated() -> list[tuple[str, str]]:
    return [(method, route.path) for method, route in SENT if any(_gates({"route": route}))]


def test_every_route_that_takes_something_has_a_gate_but_these():
    gated = _gated()
    assert {route.path for method, route in SENT if (method, route.path) not in gated} == OPEN
    assert len(gated) > 100


@pytest.mark.parametrize(("method", "path"), _gated())
def test_nobodys_body_is_read(client, method, path):
    """Not even one that announces more than any route takes."""
    at = re.sub(r"{[^}]*}", "x", path)
    for sent in ({"content": UNREADABLE, "headers": JSON}, {"headers": JSON | {"content-length": str(MAX_BODY_BYTES + 1)}}):
        answer = client.request(method, at, follow_redirects=False, **sent)
        assert answer.status_code in (401, 303), answer.text
        assert answer.status_code == 401 or answer.headers["location"].startswith("/sign-in?"), "a page"


def test_nor_of_a_key_without_the_scope(new_tenant):
    reader = new_tenant(Scope.READ)
    for path in ("/v1/tasks", "/v1/files", "/v1/webhooks", "/v1/admin/join-tokens", "/openai/v1/fine_tuning/jobs"):
        answer = reader.post(path, content=UNREADABLE, headers=JSON)
        assert (answer.status_code, "scope_missing" in answer.text) == (403, True), answer.text


def test_an_admitted_senders_body_is_read(tenant):
    problem_of(tenant.post("/v1/webhooks", content=UNREADABLE, headers=JSON), 400, "json_invalid")


def test_what_nobody_is_asked_a_key_for_is_short(client):
    most = b'{"device_code": "' + b"x" * (MAX_UNKNOWN_BYTES - 19) + b'"}'
    assert len(most) == MAX_UNKNOWN_BYTES
    token = "/v1/sign-in/device/token"
    assert client.post(token, content=most, headers=JSON).status_code not in (200, 413)
    problem = problem_of(client.post(token, content=most + b" ", headers=JSON), 413, "too_large")
    assert problem["detail"] == f"A body whose sender is not known yet may have at most {MAX_UNKNOWN_BYTES} bytes."
    form = {"key": "x" * MAX_UNKNOWN_BYTES}
    assert client.post("/sign-in", data=form).status_code == 413
    registration = {"name": "n", "boot_id": "b" * 8, "devices": [], "versions": {"motet": "x" * MAX_UNKNOWN_BYTES}}
    assert client.post("/internal/v1/nodes", json=registration).status_code == 413
