"""What must hold of a round of faults once its tasks have ended: nothing is lost, nothing mixed, nobody blamed wrongly."""

from collections.abc import Callable

import pytest

from tests.walk.executor_faults import FAULTS, Round
from tests.walk.running_stack import ENDED
from tests.walk.shared_executor import LOST, Left, placements

Compare = Callable[
    [Left, Left], None
]  # asserts that what a task left is what it leaves alone, as closely as its device promises


def run(it: Round, alone: list[Left], same: Compare, fault: str) -> None:
    FAULTS[fault](it)
    check(it, alone, same)
    if it.bad is not None:
        check_bad(it)


def check(it: Round, alone: list[Left], same: Compare) -> None:
    ended = {at: it.shared.ended(at, task, 400) for at, task in it.tasks.items()}
    for at, task in it.healthy.items():
        assert ended[at]["status"] == "succeeded", ended[at]["error"]
        left = it.shared.left(at, task)
        same(left, alone[at])
        assert left.tokens <= alone[at].tokens, "no step is billed twice"
    check_isolation(it)
    check_blame(it)
    check_seconds(it)


def check_bad(it: Round) -> None:
    """The bad task was there with the others, and its job ended with a reason that names what is wrong with it."""
    assert it.bad is not None
    assert it.shared.history(it.bad, it.tasks[it.bad], "placed")[0].get("beside", 0) >= 1
    task = it.shared.task(it.bad, it.tasks[it.bad])
    jobs = it.shared.jobs(it.bad, it.tasks[it.bad])
    said = f"{task['error']} {[(job['error'], job['exit']) for job in jobs]}"
    assert task["status"] in ENDED, task
    recomputed = [event for event in it.shared.events(it.bad, it.tasks[it.bad]) if (event["data"] or {}).get("recompute")]
    if task["status"] != "cancelled" and not recomputed:
        assert {job["status"] for job in jobs} <= {"failed", "exited"}, said
        assert any(words in said for words in ("diverging", "memory", "nothing to learn")), said


def check_isolation(it: Round) -> None:
    """What a tenant can read names nothing of another's, and another's is not there for it."""
    for at, tenant in enumerate(it.shared.tenants):
        told = it.shared.told(at, it.tasks[at])
        others = [other for other in it.shared.tenants if other is not tenant]
        assert not [one for other in others for one in other.own if one in told]
        for other in others:
            paths = {"task": "tasks", "adapter": "adapters", "file": "files"}
            theirs = [f"/v1/{paths[kind]}/{one}" for one in other.own if (kind := one.partition("_")[0]) in paths]
            assert {tenant.http.get(path).status_code for path in it.random.sample(sorted(theirs), 2)} == {404}


def check_blame(it: Round) -> None:
    """Each counts the losses of the executors that it was on, and runs alone after two in a row without progress only. A task
    whose last report was under way when its executor ended has lost nothing."""
    counted = {
        at: [said["reason"] == LOST for said in it.shared.history(at, task, "left")].count(True)
        for at, task in it.tasks.items()
    }
    assert max(counted.values()) == max(it.there.values(), default=0), (counted, it.there)
    for at, task in it.tasks.items():
        assert it.there[at] - 1 <= counted[at] <= it.there[at], (counted, it.there)
        for told, in_a_row in it.shared.alone(at, task):
            assert told == in_a_row >= 2


def check_seconds(it: Round) -> None:
    """Of one slot nobody is billed more seconds than there were, nor fewer than an executor stepped that was not lost."""
    rows = placements(it.shared.motet, list(it.tasks.values()))
    billed = sum(row["gpu_seconds"] for row in rows)
    span = max(row["ended_at"] for row in rows) - min(row["created_at"] for row in rows)
    assert 0 < billed <= span.total_seconds()
    if all(row["end_reason"] != LOST for row in rows):
        stepped = max(row["train_seconds"] for row in rows)
        assert sum(row["gpu_seconds"] - row["evaluation_seconds"] for row in rows) >= stepped * (1 - 1e-6)
    for at, task in it.tasks.items():
        own = sum(row["gpu_seconds"] - row["rewound_gpu_seconds"] for row in rows if row["task_id"] == task)
        used = it.shared.usage(at, task) if own else {"gpu_seconds": 0.0}
        assert used["gpu_seconds"] == pytest.approx(own, rel=1e-6, abs=1e-6)
