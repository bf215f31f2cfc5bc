"""motet doctor against a real service: what it finds, and what it says where there is nothing to ask."""

from datetime import timedelta

import httpx
import pytest
from motet.api.client import Client
from motet.local.doctor import examine
from sqlalchemy import delete, func, update

from service.database.engine import clock
from service.fleet.models import Node
from service.metrics.models import NewestBackup
from service.tenants.api_keys import Scope
from tests.service.fleet.fixtures import join_token, nothing_left  # noqa: F401  (a fixture)
from tests.service.fleet.scripted import ScriptedNode
from tests.service.live_server import PATIENCE, Server


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
    monkeypatch.setattr("motet.api.steps.PAUSES", ())
    url = f"http://127.0.0.1:{free_port()}"
    (only,) = examine(lambda: Client(url, "mk_x"))
    assert (only.what, only.no_service) == ("no service to talk to", True)
    assert f"{url} does not answer" in only.mend


@pytest.mark.parametrize(("hours", "well"), [(None, True), (35, True), (37, False)])
def test_an_old_backup_is_told(server: Server, new_tenant, database, hours, well):
    admin = new_tenant(*Scope)
    with database.begin() as session:
        session.execute(delete(NewestBackup))
        if hours is not None:
            taken_at = clock(session) - timedelta(hours=hours)
            session.add(NewestBackup(id=1, name="20261123T021700123Z", taken_at=taken_at))
    (found,) = [one for one in examine(lambda: Client(server.url, admin.key, admin.key)) if "backup" in one.what]
    assert (found.well, bool(found.mend)) == (well, not well)
    assert ("ago" in found.what) == (hours is not None)


def test_a_key_that_nobody_knows(server: Server):
    *_, last = examine(lambda: Client(server.url, "mk_x"))
    assert "refused (401 key_refused)" in last.what


@pytest.mark.usefixtures("nothing_left")
def test_a_service_without_machines(server: Server, new_tenant, database):
    admin = new_tenant(*Scope)
    task = admin.task()
    findings = list(examine(lambda: Client(server.url, admin.key, admin.key)))
    assert "the key is good" in [finding.what for finding in findings]
    assert any("small" in finding.what for finding in findings)
    assert "no machine is ready to train" in wrong(findings)
    assert "1 task waits to be validated" in wrong(findings)
    assert all(finding.mend for finding in findings if not finding.well)
    node = ScriptedNode(admin.client, join_token(database, "ailing"), "ailing").register()
    for columns, says in (
        ({"losing": ["t"] * 3, "quarantined_at": func.now(), "quarantine_reason": "3 placements in a row"}, "is quarantined: "),
        ({"losing": ["t"] * 2}, "is ready, but lost 2 placements in a row"),
        ({"losing": ["t"] * 2, "rests_until": func.now() + timedelta(hours=1)}, "is resting: it lost 2 placements in a row"),
        ({"behind_since": func.now() - timedelta(hours=1)}, "is not_applying: it has not acted upon what it should run"),
        (
            {"waits_for": "a download waits", "waits_since": func.now()},
            "is disk_full: it has waited for room on its disk since",
        ),
    ):
        with database.begin() as session:
            clean = dict.fromkeys(
                ("quarantined_at", "quarantine_reason", "rests_until", "behind_since", "waits_for", "waits_since")
            ) | {"losing": []}
            session.execute(update(Node).where(Node.id == node.id).values(clean | columns))
        (found,) = [one for one in examine(lambda: Client(server.url, admin.key, admin.key)) if "node ailing" in one.what]
        assert not found.well
        assert says in found.what
        assert found.mend
    admin.post(f"/v1/tasks/{task['id']}/cancel")
    assert wrong(examine(lambda: Client(server.url, admin.key))) == []  # without an admin key machines are not looked at


def test_a_node_of_cpus_that_does_not_turn_reproducibility_on(server: Server, new_tenant, database):
    admin = new_tenant(*Scope)
    token = join_token(database, "approximate")

    def told() -> list[str]:
        findings = examine(lambda: Client(server.url, admin.key, admin.key))
        return [finding.what + finding.mend for finding in findings if "MKL_CBWR" in finding.what and not finding.well]

    with httpx.Client(base_url=server.url, timeout=PATIENCE) as client:
        node = ScriptedNode(client, token, "approximate").register()  # an older worker says nothing of it
        (what,) = told()
        assert "node approximate trains on CPUs without MKL_CBWR" in what
        assert "start its worker again" in what
        node.versions["MKL_CBWR"] = "AUTO,STRICT"
        node.reboot()
        assert told() == []
