"""What the state costs grows with the queue and the fleet, not with the tasks and placements that have ended."""

from collections import Counter
from typing import Any

import pytest
from sqlalchemy import event, text, update

from service.autoscaling.fleet_needs import autoscaling_state
from service.database.engine import Database
from service.fleet.models import Placement

_HISTORY = 3000  # rows of each table that are over


@pytest.fixture
def lived_in(database: Database, new_node, tenant, plan) -> tuple[int, int]:
    """Two idle nodes with a long history, and a queue that fits neither; how many of each."""
    nodes = [new_node(slots=1) for _ in range(2)]
    ran = tenant.task()["id"]
    plan()
    assert tenant.post(f"/v1/tasks/{ran}/cancel").status_code == 200
    with database.begin() as session:
        session.execute(update(Placement).values(ended_at=Placement.created_at, leaving=None))
    for _ in range(4):
        tenant.task(gpus=4)
    plan()
    sent = {"task": ran, "history": _HISTORY, "tenant": tenant.tenant_id, "nodes": [node.id for node in nodes]}
    with database.begin() as session:
        session.execute(text(_TASKS), sent)
        session.execute(text(_PLACEMENTS), sent)
        session.execute(text(_SESSIONS), sent)
        session.execute(text(_MERGES), sent)
    with database.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("VACUUM ANALYZE tasks, placements, answer_sessions, merged_models"))
    return 4, len(nodes)


_TASKS = """INSERT INTO tasks SELECT made.* FROM tasks old, generate_series(1, :history) n,
        LATERAL jsonb_populate_record(old, jsonb_build_object('id', 'task_old' || n)) made WHERE old.id = :task"""
_PLACEMENTS = """INSERT INTO placements SELECT made.* FROM placements old, generate_series(1, :history) n,
        LATERAL jsonb_populate_record(old, jsonb_build_object('id', 'placement_old' || n,
            'ended_at', now() - n * interval '1 minute', 'node_id', (CAST(:nodes AS text[]))[1 + n % 2])) made
    WHERE old.task_id = :task"""
_SESSIONS = """INSERT INTO answer_sessions (id, node_id, device_index, base_model, base_revision, precision, tenant_id,
        dedicated, lease_until, used_at, ended_at)
    SELECT 'session_old' || n, (CAST(:nodes AS text[]))[1 + n % 2], 0, 'small', 'a', 'bf16', :tenant, false, now(), now(),
        now() - n * interval '1 minute' FROM generate_series(1, :history) n"""
_MERGES = """INSERT INTO merged_models (id, tenant_id, adapter_id, adapter_files, lineage, base_model, base_revision,
        max_shard_bytes, status, files, bytes, node_id, fence, attempts, ended_at)
    SELECT 'merged_old' || n, :tenant, 'a', '[]', '{}', 'small', 'a', 1, 'ready', '[]', 0, (CAST(:nodes AS text[]))[1 + n % 2],
        1, 0, now() - n * interval '1 minute' FROM generate_series(1, :history) n"""


def rows_read(node: dict[str, Any]) -> Counter[str]:
    """By table, the rows that its scans gave or dropped."""
    own = node["Actual Loops"] * (node["Actual Rows"] + node.get("Rows Removed by Filter", 0))
    return sum((rows_read(one) for one in node.get("Plans", ())), Counter({node.get("Relation Name", ""): own}))


def test_what_has_ended_is_not_read(lived_in, database, settings):
    queued, nodes = lived_in
    asked: list[tuple[str, Any]] = []

    def heard(connection: Any, cursor: Any, statement: str, parameters: Any, context: Any, many: bool) -> None:
        asked.append((statement, parameters))

    event.listen(database.engine, "before_cursor_execute", heard)
    try:
        with database.begin() as session:
            state = autoscaling_state(session, settings)
    finally:
        event.remove(database.engine, "before_cursor_execute", heard)
    assert [(one.width, one.tasks) for one in state.wanted] == [(4, queued)]
    assert len(state.idle_nodes) == nodes
    read = Counter[str]()
    with database.begin() as session:
        for statement, parameters in asked:
            explain = f"EXPLAIN (ANALYZE, FORMAT JSON) {statement}"
            ((plan,),) = session.connection().exec_driver_sql(explain, parameters).all()
            read += rows_read(plan[0]["Plan"])
    assert read["tasks"] <= queued + 1
    for table in ("placements", "answer_sessions", "merged_models"):
        assert read[table] <= 2 * nodes, table
