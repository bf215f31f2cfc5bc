"""The device flow: programs sign a person in by a code on the provider's page."""

import httpx
import pytest

from service.members import device_routes
from service.tenants.member_roles import Role
from tests.service.api import Caller
from tests.service.live_server import PATIENCE
from tests.service.members.conftest import Browser

BEGIN, POLL = "/v1/sign-in/device", "/v1/sign-in/device/token"


@pytest.fixture
def member(provider, tenant, link, service):
    """Ada, an editor of the tenant."""
    provider.sign_in_as("ada")
    Browser(service.app).join(link(tenant.tenant_id, Role.EDITOR))
    return tenant


def begun(service) -> dict:
    answer = service.post(BEGIN)
    assert answer.status_code == 200, answer.text
    return answer.json()


def poll(service, made: dict, **more):
    return service.post(POLL, json={"handle": made["handle"], **more})


def say(made: dict, act: str = "approve") -> None:
    httpx.get(f"{made['verification_uri_complete']}&act={act}", timeout=PATIENCE).raise_for_status()


def test_a_program_gets_a_key_of_the_persons_own(service, member, client):
    made = begun(service)
    assert {"user_code", "verification_uri", "interval", "expires_in"} <= made.keys()
    assert poll(service, made).json() == {
        **{"object": "device_sign_in_result", "status": "pending", "key": None, "label": None, "tenant": None},
        "interval": 5,
    }
    say(made)
    answer = poll(service, made, name="motet on a laptop")
    got = answer.json()
    assert (got["status"], got["label"], got["tenant"]["role"]) == ("signed_in", "ada@example.com", "editor")
    assert answer.headers["cache-control"] == "no-store"
    assert (got["key"]["name"], got["key"]["role"], got["key"]["scopes"]) == ("motet on a laptop", "editor", ["read", "write"])
    assert got["key"]["expires_at"]
    caller = Caller(client, member.tenant_id, got["key"]["secret"])
    caller.file()
    entry, signed_in, *_ = caller.get("/v1/audit").json()["data"]
    assert (entry["action"], entry["actor"]) == ("create_file", "ada@example.com")
    assert (signed_in["action"], signed_in["targets"]) == ("sign_in_program", [got["key"]["id"]])
    again = poll(service, made)
    assert (again.status_code, again.json()["code"]) == (403, "sign_in_refused")  # a code is good once


def test_a_person_may_say_no(service, member):
    made = begun(service)
    say(made, "deny")
    assert "access_denied" in poll(service, made).json()["detail"]


def test_a_code_ends(service, member, provider):
    provider.tell(device_seconds=1)
    made = begun(service)
    said = {"status": "pending"}
    while said.get("status") == "pending":
        said = poll(service, made).json()
    assert "in time" in said["detail"] or "expired_token" in said["detail"]


def test_who_polls_too_fast_is_slowed_down(service, member, provider):
    provider.tell(interval=3600)  # longer than this test takes
    made = begun(service)
    assert [poll(service, made).json()["interval"] for _ in range(3)] == [3600, 3605, 3605]


def test_a_handle_of_ones_own_making_reaches_no_provider(service, member, provider):
    before = len(provider.calls)
    for handle in ("gAAAAA", "é", "x" * 8000):
        assert poll(service, {"handle": handle}).json()["code"] == "sign_in_refused"
    assert poll(service, {"handle": ""}).status_code == 422
    assert len(provider.calls) == before + 1  # this look-up alone


def test_a_stranger_gets_no_key(service, member, provider):
    provider.sign_in_as("stranger")
    made = begun(service)
    say(made)
    assert poll(service, made).json()["code"] == "no_tenant"


def test_a_tenant_may_be_named(service, member, provider, new_tenant, link):
    other = new_tenant()
    Browser(service.app).join(link(other.tenant_id, Role.VIEWER))
    for name, expected in ((None, other.tenant_id), (member.tenant_id, member.tenant_id)):
        made = begun(service)
        say(made)
        assert poll(service, made, tenant=name).json()["tenant"]["id"] == expected
    made = begun(service)
    say(made)
    refused = poll(service, made, tenant="nobody's")
    assert (refused.status_code, "yours:" in refused.json()["detail"]) == (404, True)


def test_an_address_may_begin_only_so_often(service, member, provider, monkeypatch):
    monkeypatch.setattr(device_routes, "_BEGUN_PER_MINUTE", 3)
    answers = [service.post(BEGIN).status_code for _ in range(6)]
    assert answers[0] == 200
    assert answers[-1] == 429
