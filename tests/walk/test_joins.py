"""Two tenants' tasks of one base share one slot, through the real planner and a real worker, and neither notices the other.

On a CPU a task beside others has the bits of the task alone (docs/NUMERICS.md), also where its worker was killed meanwhile.
"""

import os
import signal
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.walk.running_stack import RunningStack, running_stack, short_rows, stopped

QUICK = {
    "MOTET_HEARTBEAT_SECONDS": "1",
    "MOTET_LEASE_SECONDS": "30",
    "MOTET_RECONCILE_SECONDS": "1",
    "MOTET_WORKER_CHECKPOINT_SECONDS": "1",
}
LONG, SHORT = 320, 80  # steps
Left = tuple[dict[tuple[int, str], dict[int, float | None]], dict[str, str]]


@pytest.fixture(scope="module")
def motet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningStack]:
    with running_stack(tmp_path_factory.mktemp("motet"), **QUICK) as it:
        yield it


def start(motet: RunningStack, http: httpx.Client, steps: int, **more: Any) -> str:
    """A task of one job. Its rows are its tenant's own; both tenants' read alike."""
    return motet.submit(
        http,
        dataset={"file_id": motet.upload(short_rows(64), http)},
        search_space={"method": "grid", "learning_rate": [2e-3], "rank": [8], "batch_size": [4], "seed": [steps]},
        training={"epochs": 100, "max_steps": steps, "max_seq_len": 64},
        early_exit={"policy": "none", "eval_every": steps},
        **more,
    )


def left(motet: RunningStack, http: httpx.Client, task_id: str) -> Left:
    """What the task leaves: its curves, and its winner's files by sha256."""
    data = http.get(f"/v1/tasks/{task_id}/metrics").json()["data"]
    curves = {(one["index"], one["series"]): dict(zip(one["steps"], one["values"], strict=True)) for one in data}
    winner = motet.ended(task_id, http=http)["winner"]
    files = http.get(f"/v1/adapters/{winner['adapter_id']}").json()["files"]
    return curves, {file["path"]: file["sha256"] for file in files}


def placed(http: httpx.Client, task_id: str) -> list[dict[str, Any]]:
    """What its history says of its placements, oldest first."""
    changes = http.get(f"/v1/tasks/{task_id}/plan-history", params={"limit": 100}).json()["data"]
    return [change["said"] for change in reversed(changes) if change["kind"] == "placed"]


def running(motet: RunningStack, http: httpx.Client, task_id: str, steps: int = 1) -> dict[str, Any]:
    return motet.until(task_id, lambda task: task["status"] == "running" and task["progress"]["steps_done"] >= steps, http=http)


@pytest.mark.timeout(1200)  # four runs of tasks, on a machine that may be busy
def test_two_tenants_share_a_slot_and_leave_what_they_leave_alone(motet: RunningStack) -> None:
    mine, theirs = motet.http, motet.tenant("other")

    # alone: a dedicated task shares its slot with nobody, so the second waits for the first
    first = start(motet, mine, LONG, isolation="dedicated")
    running(motet, mine, first)
    second = start(motet, theirs, SHORT, isolation="dedicated")
    assert motet.ended(first)["status"] == motet.ended(second, http=theirs)["status"] == "succeeded"
    began, ended = motet.task(second, theirs)["placement"]["since"], motet.task(first)["placement"]["ended_at"]
    assert began >= ended
    alone = left(motet, mine, first), left(motet, theirs, second)

    # together: the short one joins the long one, the worker is killed under both, and both go on
    first = start(motet, mine, LONG)
    running(motet, mine, first)
    second = start(motet, theirs, SHORT)
    beside = running(motet, theirs, second)
    with stopped(motet.below("worker", "worker.executor")):
        assert beside["placement"]["beside"] == 1
        assert motet.task(first)["status"] == "running", "the longer one is still at work"
        (said,) = placed(theirs, second)
        assert said["sentence"].startswith("Shares 1 CPU slot of node ")
        assert "with 1 task; " in said["sentence"]
        (node,) = mine.get("/v1/schedule").json()["nodes"]
        assert sorted((run["task_id"] or "", run["beside"]) for run in node["running"]) == [("", 1), (first, 1)]
        assert node["free"] == 0
        os.kill(motet.pids["worker"], signal.SIGKILL)
    assert motet.ended(second, http=theirs)["status"] == motet.ended(first)["status"] == "succeeded"
    assert len(placed(mine, first)) > 1, "the kill took its first placement"
    together = left(motet, mine, first), left(motet, theirs, second)
    assert together == alone
    assert together[0][1] != together[1][1], "each has its own adapter"
