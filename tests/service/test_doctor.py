"""motet doctor against a real service: what it finds, and what it says where there is nothing to ask."""

import pytest
from motet.api.client import Client
from motet.local.doctor import examine

from service.tenants.api_keys import Scope
from tests.service.live_server import Server


@pytest.fixture(autouse=True)
def nowhere_else(monkeypatch, tmp_path):
    for name in ("MOTET_API_URL", "MOTET_API_KEY", "MOTET_ADMIN_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MOTET_STATE_DIR", str(tmp_path))


def wrong(findings) -> list[str]:
    return [finding.what for finding in findings if not finding.well]


def test_without_a_service_it_says_how_to_get_one():
    (only,) = examine()
    assert not only.well
    assert "motet up" in only.mend


def test_one_that_does_not_answer(monkeypatch, free_port):
    monkeypatch.setattr("motet.api.transport._PAUSES", ())
    url = f"http://127.0.0.1:{free_port()}"
    (only,) = examine(lambda: Client(url, "mk_x"))
    assert only.what == f"{url} does not answer"


def test_a_key_that_nobody_knows(server: Server):
    *_, last = examine(lambda: Client(server.url, "mk_x"))
    assert "refused (401 key_refused)" in last.what


def test_a_service_without_machines(server: Server, new_tenant):
    admin = new_tenant(*Scope)
    task = admin.task()
    findings = list(examine(lambda: Client(server.url, admin.key, admin.key)))
    assert "the key is good" in [finding.what for finding in findings]
    assert any("small" in finding.what for finding in findings)
    assert "no machine is ready to train" in wrong(findings)
    assert "1 tasks wait to be validated" in wrong(findings)
    assert all(finding.mend for finding in findings if not finding.well)
    admin.post(f"/v1/tasks/{task['id']}/cancel")
    assert wrong(examine(lambda: Client(server.url, admin.key))) == []  # without an admin key machines are not looked at
