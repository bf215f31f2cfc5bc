"""Heartbeats: how many round trips to the database each takes, whatever it reads, and whose placements it may renew."""

from datetime import timedelta

import pytest
from sqlalchemy import select, text, update

from service.database.engine import clock
from service.database.timeouts import Connection
from service.fleet.heartbeats.heartbeat_statements import _LOCK_PLACEMENTS
from service.fleet.models import Node, Placement
from service.fleet.worker_authentication import credential_hash

BEGIN_AND_COMMIT = 2


@pytest.fixture
def round_trips(monkeypatch):
    """A list that grows by an entry with each round trip to Postgres, of any thread."""
    made, wait = [], Connection.wait

    def counting(connection, *given, **named):
        made.append(connection)
        return wait(connection, *given, **named)

    monkeypatch.setattr(Connection, "wait", counting)
    return made


def test_a_heartbeat_without_pulses_locks_its_node_and_writes_it(new_node, round_trips):
    node = new_node()
    version = node.desired().version
    node.beat(applied_version=version, applied_age=0.0)
    del round_trips[:]
    assert node.beat(applied_version=version, applied_age=0.5).status_code == 200
    assert len(round_trips) == BEGIN_AND_COMMIT + 2


def test_a_heartbeat_locks_and_renews_any_number_of_placements_at_once(database, tenant, new_node, plan, round_trips):
    node = new_node(slots=3)
    tasks = [tenant.task(isolation="dedicated") for _ in range(3)]
    plan()
    pulses = [node.take(task["id"]).pulse() for task in tasks]
    for number in (1, 3):  # the first to acknowledge them, the second to renew them
        for _ in range(2):
            del round_trips[:]
            assert len(node.leases(*pulses[:number]).leases) == number
            assert len(round_trips) == BEGIN_AND_COMMIT + 4
    with database.begin() as session:
        left = session.scalars(select(Placement.lease_until - clock(session))).all()
        assert all(timedelta(seconds=60) < one <= timedelta(seconds=90) for one in left)


def test_bases_are_written_when_they_change(database, new_node):
    node = new_node()
    for bases in (["a" * 64], ["a" * 64, "b" * 64], ["a" * 64, "b" * 64], [], None):
        assert node.beat(bases=bases, base_bytes_per_second=5e6).status_code == 200
        with database.begin() as session:
            known = session.get_one(Node, node.id)
            assert (known.bases, known.base_rate) == (bases, 5e6)


def test_placements_are_locked_by_their_key_where_the_statistics_know_of_no_live_one(
    database, tenant, new_node, plan, dependencies
):
    node, task = new_node(), tenant.task()
    plan()
    placement = node.take(task["id"])
    copy = """INSERT INTO placements (id, task_id, node_id, device_indexes, fence, last_seq, lease_until, ended_at, steps,
            tokens, train_seconds, micro_batches, forwards, evaluation_tokens, evaluation_seconds)
        SELECT :kind || n, :kind || n, :kind, device_indexes, fence, 0, lease_until, {ended}, 0, 0, 0, 0, 0, 0, 0
        FROM placements, generate_series(1, 500) n WHERE id = :placement"""
    with database.begin() as session:
        session.execute(text("SET LOCAL session_replication_role = replica"))  # of no tasks and no node
        session.execute(text(copy.format(ended="now()")), {"kind": "ended", "placement": placement.id})
        session.execute(update(Placement).where(Placement.id == placement.id).values(ended_at=clock(session)))
    with database.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("VACUUM ANALYZE placements"))
    with database.begin() as session:
        session.execute(text("SET LOCAL session_replication_role = replica"))
        session.execute(update(Placement).where(Placement.id == placement.id).values(ended_at=None))
        session.execute(text(copy.format(ended="NULL")), {"kind": "live", "placement": placement.id})
    mine = {"node": node.id, "credential": credential_hash(node.credential), "ids": [placement.id]}
    explain, said = f"EXPLAIN (ANALYZE, FORMAT JSON) {_LOCK_PLACEMENTS.sql}", _LOCK_PLACEMENTS._constants | mine
    with database.begin() as session:
        driver = session.connection().connection.driver_connection
        ((read,),) = driver.execute(explain, said).fetchall()
    assert rows_read(read[0]["Plan"]) == 1
    assert len(node.leases(placement.pulse()).leases) == 1


def rows_read(plan):
    """Placements that the statement's scans gave or dropped."""
    own = plan["Actual Loops"] * (plan["Actual Rows"] + plan.get("Rows Removed by Filter", 0))
    counted = own if plan.get("Relation Name") == "placements" else 0
    return counted + sum(map(rows_read, plan.get("Plans", ())))


def test_a_pulse_renews_no_placement_of_another_node_and_none_under_an_old_credential(database, tenant, new_node, plan):
    node, task = new_node(), tenant.task()
    plan()
    placement, other = node.take(task["id"]), new_node()

    def heard():
        with database.begin() as session:
            found = session.get_one(Placement, placement.id)
            return found.acknowledged_at, found.heartbeat_at, found.lease_until

    before = heard()
    assert other.leases(placement.pulse()).leases == []
    said = {"boot_id": node.boot_id, "pulses": [placement.pulse()]}
    for credential in (other.credential, "nc_" + "x" * 43):
        refused = node.call("POST", f"nodes/{node.id}/heartbeats", credential, said)
        assert (refused.status_code, refused.json()["code"]) == (401, "node_unknown")
    assert node.beat(placement.pulse(), boot_id="another boot").json()["code"] == "node_unknown"
    assert heard() == before


def test_a_heartbeat_that_cannot_be_read_is_refused_by_its_field(new_node):
    node = new_node()
    wrong = node.beat({"placement_id": "placement_x", "fence": "first", "phase": "training", "progress_age": 0.0})
    assert wrong.status_code == 422
    assert "pulses" in wrong.json()["errors"][0]["field"]
    headers = {"Authorization": f"Bearer {node.credential}", "Content-Type": "application/json"}
    path = f"/internal/v1/nodes/{node.id}/heartbeats"
    for broken in (b"{", b'{"boot_id": "\xff"}'):
        assert node.client.post(path, headers=headers, content=broken).status_code == 400
    assert node.beat().status_code == 200
