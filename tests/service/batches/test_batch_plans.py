"""Batches on real rows, planned by the real planner and run by scripted nodes whose clock the test keeps.

The nodes report steps so that the planner's remaining seconds are what the test's clock says; it never waits.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial

import pytest
from sqlalchemy import select, update

from benchmarks.simulator.arrivals import eleven
from service.background.reconciler import give_up_silent_nodes
from service.database.engine import Database, clock
from service.dependencies import Dependencies
from service.fleet.models import Node
from service.scheduler import planner
from service.scheduler.core.decision import SearchBudget
from service.scheduler.core.plan_objective import makespan
from service.scheduler.core.problem_json import problem_from_json
from service.scheduler.core.solve import BUDGET, solve
from service.scheduler.estimate.task_duration import LOADING_SECONDS
from service.scheduler.models import Plan, ThroughputProfile
from service.scheduler.planner import replan
from service.tasks.models import Task
from service.tasks.submission.stored_file_check import validate_due
from tests.service.fleet.scripted import ScriptedNode, ScriptedPlacement, completed, moved

BATCH, PER_STEP = 4, 1.0  # rows of a step, and the seconds that each lasts


@pytest.fixture
def steady(database, client, nothing_left):
    """Every step of base "small" on a CPU lasts PER_STEP seconds, at any size and width."""
    with database.begin() as session:
        for width in (1, 2, 4):
            for power in range(18):
                session.add(
                    ThroughputProfile(
                        base_model="small",
                        precision="bf16",
                        device_type="cpu",
                        tokens=2**power,
                        rows=0,
                        width=width,
                        mean_tokens=2.0**power,
                        log_seconds=math.log(PER_STEP),
                        variance=0.0,
                        measured=8,
                    )
                )


def spec(caller, file_id, seconds, gpus=1, **changes):
    """A task of one job for each GPU, that lasts about so many seconds."""
    steps = round(seconds - LOADING_SECONDS)
    rates = [1e-4 * (1 + n) for n in range(gpus)]
    return caller.spec(
        file_id,
        search_space={"learning_rate": rates, "batch_size": [BATCH]},
        training={"max_seq_len": 64, "epochs": 100, "max_steps": steps},
        early_exit={"policy": "none", "eval_every": steps},
        gpus=gpus,
        **changes,
    )


@dataclass
class Runs:
    """One task on a node."""

    taken: ScriptedPlacement
    seconds: float
    until: float


@dataclass
class Fleet:
    """Nodes that train by the test's clock: each task for as long as the planner thought when it was first planned."""

    database: Database
    dependencies: Dependencies
    plan: Callable[[], int]
    nodes: list[ScriptedNode]
    now: float = 0.0
    runs: dict[str, Runs] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    ended: dict[str, float] = field(default_factory=dict)

    def start(self) -> None:
        """Plan, and take up what the plan starts."""
        self.plan()
        with self.database.begin() as session:
            newest = session.scalars(select(Plan.problem).order_by(Plan.id.desc()).limit(1)).first()
        for task in problem_from_json(newest).queued if newest is not None else ():
            self.seconds.setdefault(task.id, float(task.shortest or 0))
        for node in self.nodes:
            for given in node.desired().placements:
                if given.task_id not in self.runs:
                    taken = node.take(given.task_id)
                    node.leases(taken.pulse())
                    steps = round(self.seconds[given.task_id] - LOADING_SECONDS)
                    jobs = range(len(given.jobs))
                    taken.report(taken.attached(steps=steps), *(moved(job, "warmup") for job in jobs))
                    self.runs[given.task_id] = Runs(taken, self.seconds[given.task_id], self.now + self.seconds[given.task_id])

    def go_on(self, until: float = math.inf) -> bool:
        """Let time pass to the next end, or to `until`; returns whether anything still runs."""
        self.start()
        if not self.runs:
            return False
        self.now = min(until, *(run.until for run in self.runs.values()))
        for task_id, run in list(self.runs.items()):
            jobs, left = range(len(run.taken.given.jobs)), run.until - self.now
            if left > 0:  # what is left is the planner's: loading, and a second for each step
                step = max(0, round(run.seconds - LOADING_SECONDS - max(0.0, left - LOADING_SECONDS)))
                run.taken.report(*(moved(job, "warmup", step) for job in jobs))
                continue
            done = round(run.seconds - LOADING_SECONDS)
            kept = run.taken.adapter(0, 1.0, step=done)
            run.taken.report(kept, *(completed(job, step=done, best_step=done) for job in jobs))
            self.ended[task_id] = self.now
            del self.runs[task_id]
        return True

    def finish(self) -> None:
        while self.go_on():
            pass

    def lose(self, node: ScriptedNode) -> None:
        """The node falls silent; the reconciler gives it up. Nothing of what ran there is safe, and it does not come back."""
        with self.database.begin() as session:
            long_ago = clock(session) - timedelta(days=1)
            session.execute(update(Node).where(Node.id == node.id).values(heartbeat_at=long_ago))
        give_up_silent_nodes(self.dependencies)
        self.runs = {id: run for id, run in self.runs.items() if run.taken.node is not node}
        self.nodes.remove(node)


@pytest.fixture
def fleet(database, dependencies, plan, new_node, steady, monkeypatch):
    """Nodes of so many CPU slots: `fleet(4, 4)`. The planner's searches end by their deterministic budget alone."""
    monkeypatch.setattr(planner, "solve", partial(solve, budget=replace(BUDGET, wall=300.0)))

    def make(*slots: int) -> Fleet:
        return Fleet(database, dependencies, plan, [new_node(slots=count) for count in slots])

    return make


def post(caller, tasks, **changes):
    """A batch of (seconds, GPUs); its resource."""
    file_id = caller.file([{"prompt": f"{n}?", "completion": str(n)} for n in range(400)])
    specs = [spec(caller, file_id, seconds, gpus) for seconds, gpus in tasks]
    answer = caller.post("/v1/batches", json={"tasks": specs} | changes)
    assert answer.status_code == 201, answer.text
    return answer.json()


def ids_of(batch):
    return [task["id"] for task in batch["tasks"]]


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_altos_eleven_tasks_on_eight_gpus_end_at_the_proven_optimum(tenant, fleet, database, seed):
    """ALTO, figure 12, a minute of its instance as a second. The optimum is CP-SAT's own proof for the first plan's problem."""
    run = fleet(8)
    made = post(tenant, [(task.worst, task.gpus) for task in eleven(seed)])
    run.start()
    shown = tenant.get(f"/v1/batches/{made['id']}").json()
    with database.begin() as session:
        problem = problem_from_json(session.scalars(select(Plan.problem).order_by(Plan.id).limit(1)).one())
    proven = solve(problem, SearchBudget(polish=40.0, wall=300.0))
    assert (proven.status, proven.bound) == ("OPTIMAL", makespan(problem, proven.starts))
    assert shown["plan"]["makespan_seconds"] == proven.bound
    run.finish()
    assert set(run.ended) == set(ids_of(made))
    assert run.now == proven.bound
    assert tenant.get(f"/v1/batches/{made['id']}").json()["status"] == "succeeded"


def test_arrivals_from_outside_are_planned_beside_a_batch(tenant, new_tenant, fleet):
    other, run = new_tenant(), fleet(4)
    made = post(tenant, [(300, 2), (250, 2), (200, 1), (150, 1), (100, 1), (50, 1), (120, 4)])
    run.go_on()
    file_id = other.file()
    outside = [other.post("/v1/tasks", json=spec(other, file_id, 60, gpus)).json()["id"] for gpus in (1, 2)]
    run.start()
    assert tenant.get(f"/v1/batches/{made['id']}").json()["plan"]["method"] in ("rules", "longest_first", "cpsat")
    run.finish()
    assert set(run.ended) == {*ids_of(made), *outside}
    assert {tenant.get(f"/v1/tasks/{id}").json()["status"] for id in ids_of(made)} == {"succeeded"}
    assert {other.get(f"/v1/tasks/{id}").json()["status"] for id in outside} == {"succeeded"}


def test_a_node_lost_in_the_middle_is_planned_around(tenant, fleet):
    run = fleet(4, 4)
    made = post(tenant, [(300, 2), (250, 2), (200, 2), (180, 2), (150, 2), (100, 1), (50, 1)])
    run.go_on()
    run.lose(run.nodes[1])
    run.finish()
    assert set(run.ended) == set(ids_of(made))
    assert tenant.get(f"/v1/batches/{made['id']}").json()["status"] == "succeeded"


def test_two_batches_at_once_end_and_neither_starves(tenant, new_tenant, fleet, database):
    other, run = new_tenant(), fleet(4)
    first = post(tenant, [(200, 2), (150, 2), (100, 1), (80, 1), (60, 1)])
    second = post(other, [(180, 2), (120, 1), (90, 1), (70, 2)], objective="makespan")
    run.start()
    with database.begin() as session:
        queued = problem_from_json(session.scalars(select(Plan.problem).order_by(Plan.id.desc()).limit(1)).one()).queued
    assert {task.batch for task in queued} == {first["id"], second["id"]}
    for caller, made in ((tenant, first), (other, second)):
        assert caller.get(f"/v1/batches/{made['id']}").json()["plan"] is not None
    run.finish()
    assert set(run.ended) == {*ids_of(first), *ids_of(second)}


def test_a_batch_waits_until_all_its_files_are_checked(tenant, fleet, database):
    """A plan of half a batch would give away what the other half needs."""
    run = fleet(2)
    made = post(tenant, [(100, 1), (50, 1), (60, 2)])
    last = ids_of(made)[2]

    def stands(status):
        with database.begin() as session:
            session.execute(update(Task).where(Task.id == last).values(status=status))

    validate_due(run.dependencies.db, run.dependencies.storage, run.dependencies.queue)
    stands("validating")
    replan(run.dependencies)
    assert run.nodes[0].desired().placements == []
    run.plan()
    assert run.nodes[0].desired().placements != []


def test_a_batchs_deadline_is_each_tasks(tenant, fleet, database):
    run = fleet(1)
    post(tenant, [(100, 1), (50, 1)], objective="weighted_completion", deadline="2100-01-01T00:00:00Z")
    run.plan()
    with database.begin() as session:
        queued = problem_from_json(session.scalars(select(Plan.problem).order_by(Plan.id.desc()).limit(1)).one()).queued
    assert all(task.deadline is not None and task.batch is None for task in queued)
    assert len(queued) == 2
