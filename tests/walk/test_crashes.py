"""Nothing is lost: processes killed, stopped and resumed in the middle of a run, and the curves are those of an unbroken one.

On CPU a resumed job repeats its steps bit for bit, so the curves of a run that was hurt must equal the unbroken run's exactly.
"""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy

from tests.walk.running_stack import RunningStack, running_stack, short_rows, until

QUICK = {
    "MOTET_HEARTBEAT_SECONDS": "1",
    "MOTET_LEASE_SECONDS": "30",
    "MOTET_RECONCILE_SECONDS": "1",
    "MOTET_WORKER_CHECKPOINT_SECONDS": "1",
}
SPEC: dict[str, Any] = {
    "search_space": {"method": "grid", "learning_rate": [3e-3, 1e-3], "rank": [4, 16], "batch_size": [2]},
    "training": {"epochs": 4, "max_seq_len": 64},  # it must last for six kills, each of which a report or two must show
    "early_exit": {"policy": "alto", "warmup_fraction": 0.3, "keep_fraction": 0.5, "tau_gap": 10.0, "eval_every": 24},
}
ROWS = 96


@pytest.fixture(scope="module")
def motet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningStack]:
    with running_stack(tmp_path_factory.mktemp("motet"), **QUICK) as it:
        yield it


@pytest.fixture(scope="module")
def unbroken(motet: RunningStack) -> dict[tuple[int, str], dict[int, float | None]]:
    """The curves of a run that nothing happened to."""
    task_id = start(motet)
    assert motet.ended(task_id)["status"] == "succeeded"
    return motet.curves(task_id)


def start(motet: RunningStack) -> str:
    return motet.submit(dataset={"file_id": motet.upload(short_rows(ROWS))}, **SPEC)


def steps(task: dict[str, Any]) -> int:
    return int(task["progress"]["steps_done"])


def child(motet: RunningStack, module: str) -> int:
    """A worker that was just started anew has none yet: a point that the one before had sent may arrive after its end."""
    (pid,) = until(lambda: motet.below("worker", module))
    return pid


def emptied_valkey(motet: RunningStack) -> int:
    with motet.valkey as valkey:
        valkey.flushall()
    return motet.pids["valkey"]


VICTIMS = {  # the API last: training goes on without it, and must not be over before the others were killed
    "valkey": emptied_valkey,
    "executor": lambda motet: child(motet, "worker.executor"),
    "worker": lambda motet: motet.pids["worker"],
    "heartbeat": lambda motet: child(motet, "worker.node.heartbeat"),
    "queue": lambda motet: motet.pids["queue"],
    "api": lambda motet: motet.pids["api"],
}


@pytest.mark.timeout(1200)  # an unbroken run first, then one with six restarts
def test_kills_lose_nothing(motet: RunningStack, unbroken: dict[tuple[int, str], dict[int, float | None]]) -> None:
    """Also not what was flushed: all hints are lost with Valkey, whose end makes things only later."""
    task_id = start(motet)
    for pid_of in VICTIMS.values():
        done = steps(motet.until(task_id, lambda task: task["status"] == "running" and steps(task) >= 8))
        os.kill(pid_of(motet), signal.SIGKILL)
        motet.until(task_id, lambda task, done=done: steps(task) > done)
    assert motet.ended(task_id)["status"] == "succeeded"
    assert motet.curves(task_id) == unbroken


def test_pauses_and_an_eviction_lose_no_step(
    motet: RunningStack, unbroken: dict[tuple[int, str], dict[int, float | None]]
) -> None:
    task_id = start(motet)
    for at in (6, 30):
        motet.until(task_id, lambda task, at=at: task["status"] == "running" and steps(task) >= at)
        assert motet.http.post(f"/v1/tasks/{task_id}/pause").status_code == 200
        paused = motet.until(task_id, lambda task: task["status"] == "paused")
        assert motet.task(task_id)["progress"] == paused["progress"]
        assert motet.http.post(f"/v1/tasks/{task_id}/resume").json()["status"] == "queued"
    done = steps(motet.until(task_id, lambda task: task["status"] == "running" and steps(task) >= 60))
    (node,) = motet.as_admin("GET", "/v1/admin/nodes")["data"]
    motet.as_admin("POST", f"/v1/admin/nodes/{node['id']}/drain", json={"evict": True})
    waits = motet.until(task_id, lambda task: task["status"] == "queued" and task["waiting"]["code"] != "not_planned")
    assert (waits["requeue_reason"], waits["waiting"]["code"]) == ("node_drained", "node_drained")
    assert steps(waits) >= done, "what was trained is kept"
    motet.as_admin("POST", f"/v1/admin/nodes/{node['id']}/undrain")
    assert motet.ended(task_id)["status"] == "succeeded"
    assert motet.curves(task_id) == unbroken
    kinds = [change["kind"] for change in motet.http.get(f"/v1/tasks/{task_id}/plan-history").json()["data"]]
    assert kinds.count("placed") == 4
    assert kinds.count("left") == 3


def everything(url: str) -> dict[str, list[tuple[Any, ...]]]:
    """All rows that a late worker could spoil."""
    tables = ("tasks", "jobs", "point_chunks", "adapters", "placements")
    engine = sqlalchemy.create_engine(url)
    with engine.connect() as connection:
        rows = {t: sorted(map(tuple, connection.execute(sqlalchemy.text(f"SELECT * FROM {t}"))), key=str) for t in tables}
    engine.dispose()
    return rows


def placement_on(motet: RunningStack, node: str) -> str:
    """The id of the one placement that the node ever had."""
    engine = sqlalchemy.create_engine(motet.database_url)
    with engine.connect() as connection:
        asked = sqlalchemy.text("SELECT p.id FROM placements p JOIN nodes n ON n.id = p.node_id WHERE n.name = :node")
        (found,) = connection.execute(asked, {"node": node}).scalars()
    engine.dispose()
    return str(found)


@pytest.mark.slow  # test_chaos stops a worker past its lease too, and test_daemon a whole node
def test_a_worker_that_slept_past_its_lease_changes_nothing(
    tmp_path: Path, unbroken: dict[tuple[int, str], dict[int, float | None]]
) -> None:
    with running_stack(tmp_path, workers=2, **QUICK | {"MOTET_LEASE_SECONDS": "6"}) as motet:
        task_id = start(motet)
        task = motet.until(task_id, lambda task: steps(task) >= 20)
        workers = {motet.environment(name)["MOTET_NODE_NAME"]: name for name in motet.pids if name.startswith("worker")}
        assert len(workers) == 2
        sleeper = workers[task["placement"]["node"]]
        family = [
            motet.pids[sleeper],
            *motet.below(sleeper, "worker.node.heartbeat"),
            *motet.below(sleeper, "worker.executor"),
        ]
        assert len(family) == 3
        for pid in family:
            os.kill(pid, signal.SIGSTOP)
        ended = motet.ended(task_id)
        assert ended["status"] == "succeeded"
        assert motet.curves(task_id) == unbroken

        rows, log = everything(motet.database_url), motet.log("api")
        told = log.stat().st_size
        for pid in reversed(family):  # the daemon last: it kills an executor whose placement is over, and takes note of its end
            os.kill(pid, signal.SIGCONT)
        deadline = time.monotonic() + 120
        while motet.below(sleeper, "worker.executor") == family[2:] and time.monotonic() < deadline:
            time.sleep(0.2)  # the executor notices by its own clock that its lease is over
        assert family[2] not in motet.below(sleeper, "worker.executor")
        assert everything(motet.database_url) == rows
        theirs = f"/internal/v1/placements/{placement_on(motet, task['placement']['node'])}/"  # another worker may still report
        answers = [line for line in log.read_text()[told:].splitlines() if theirs in line]
        assert all(" 409" in line for line in answers), answers
