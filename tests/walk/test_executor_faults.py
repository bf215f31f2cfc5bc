"""Four tenants share one executor, and a fault strikes it: nothing is lost, nothing mixed, nobody blamed wrongly.

On a CPU a task beside others, also resumed, has the bits of the task alone (docs/NUMERICS.md): what each leaves must be equal.
"""

from collections.abc import Iterator

import pytest

from tests.walk.executor_faults import FAULTS, STALL, Round
from tests.walk.running_stack import ENDED, running_stack
from tests.walk.shared_executor import LOST, SPECS, Left, SharedExecutor, placements

PATIENT = {
    "MOTET_HEARTBEAT_SECONDS": "1",
    "MOTET_RECONCILE_SECONDS": "1",
    "MOTET_WORKER_CHECKPOINT_SECONDS": "1",
    "MOTET_QUARANTINE_SECONDS": "6",
    "MOTET_LEASE_SECONDS": "30",
    "MOTET_STALL_SECONDS": "60",
}
# only where an executor is to stall: with these a pause of a busy machine is a loss too
QUICK = {**PATIENT, "MOTET_LEASE_SECONDS": "6", "MOTET_STALL_SECONDS": str(STALL)}
_STACKS = {"patient": PATIENT, "quick": QUICK}
ROUNDS = 40


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[SharedExecutor]:
    with running_stack(tmp_path_factory.mktemp("motet"), **_STACKS[request.param]) as motet:
        it = SharedExecutor(motet)
        yield it
        it.close()


@pytest.fixture(scope="module")
def alone(shared: SharedExecutor) -> list[Left]:
    """What each tenant's task leaves that shares with nobody."""
    tasks = [shared.submit(at, isolation="dedicated") for at in range(len(SPECS))]
    assert [shared.ended(at, task)["status"] for at, task in enumerate(tasks)] == ["succeeded"] * len(SPECS)
    left = [shared.left(at, task) for at, task in enumerate(tasks)]
    assert all(one.adapters for one in left)
    return left


def check(it: Round, alone: list[Left]) -> None:
    ended = {at: it.shared.ended(at, task, 400) for at, task in it.tasks.items()}
    for at, task in it.healthy.items():
        assert ended[at]["status"] == "succeeded", ended[at]["error"]
        left = it.shared.left(at, task)
        assert (left.curves, left.adapters) == (alone[at].curves, alone[at].adapters)
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


def run(shared: SharedExecutor, alone: list[Left], fault: str, seed: int) -> None:
    it = Round(shared, seed)
    FAULTS[fault](it)
    check(it, alone)
    if it.bad is not None:
        check_bad(it)


_NAMES = sorted(FAULTS)
_ROUNDS = {seed: _NAMES[seed % len(_NAMES)] for seed in range(1, ROUNDS + 1)}
_STALLS = [seed for seed, fault in _ROUNDS.items() if fault == "stop_executor"]


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("shared", ["patient"], indirect=True)
@pytest.mark.parametrize("seed", [seed for seed in _ROUNDS if seed not in _STALLS])
def test_rounds_of_faults(shared: SharedExecutor, alone: list[Left], seed: int) -> None:
    """The long form: each fault as often as every other, in an order and at moments from the seeds."""
    run(shared, alone, _ROUNDS[seed], seed)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("shared", ["quick"], indirect=True)
@pytest.mark.parametrize("seed", _STALLS)
def test_rounds_of_stalls(shared: SharedExecutor, alone: list[Left], seed: int) -> None:
    run(shared, alone, _ROUNDS[seed], seed)
