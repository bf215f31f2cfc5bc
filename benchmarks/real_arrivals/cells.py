"""One run of the comparison: a window, a load, a policy, with or without fair share. A cell in, its figures out.

A tenant's slowdown is its mean completion in the shared run over that of its own tasks alone on the same fleet (EASY-WSAP).
"""

from collections import defaultdict
from dataclasses import dataclass, replace
from random import Random
from statistics import fmean
from typing import Any

from benchmarks.real_arrivals.windows import GPUS, SOURCES, window_of
from benchmarks.simulator.arrivals import NODE_GPUS, TRACES, Arrival, largest_tenants, trace
from benchmarks.simulator.engine import simulate
from benchmarks.simulator.policies import POLICIES
from benchmarks.simulator.run_metrics import metrics
from benchmarks.simulator.run_record import LEAVE_SECONDS, PREEMPTING, Outcome, Setup

ALONE = "alone"  # not a policy: each tenant's isolated run
WEEK = "philly week"
WEEK_GPUS = 128
BOUND = 3600.0  # longest wait in seconds of a task within its tenant's share
SLOW_SWITCH = "slow switch"  # leaving and resuming take `SLOWER` times as long
SLOWER = 4
VARIANTS = ("deadlines", "mixed", "drains")  # problems in which the rules see little
MIXED = (1.0, 1.0, 1.0, 1.0, 0.5, 0.5, 0.3, 0.3)  # speeds of three GPU types, by node
DRAINS = tuple(  # two of eight nodes at a time, for half a day
    (moment, node, drained)
    for half_day in range(8)
    for node in (half_day, (half_day + 4) % 8)
    for moment, drained in ((half_day * 43_200, True), ((half_day + 1) * 43_200, False))
)
PRIOR = 0.3  # expected duration over the worst case; true ones are 0.2 to 0.4 of it


@dataclass(frozen=True)
class Cell:
    """`source` is a key of SOURCES or WEEK, which has one window and no load; `variant` a VARIANT, SLOW_SWITCH or empty."""

    source: str
    load: float
    window: int
    policy: str
    fair: bool = False
    variant: str = ""

    @property
    def name(self) -> str:
        place = self.source if self.source == WEEK else f"{self.source}-{self.load:g}-{self.window}"
        return f"{place}-{self.policy}{'-fair' if self.fair else ''}{self.variant and '-' + self.variant}"


def tasks_of(cell: Cell) -> list[Arrival]:
    if cell.source == WEEK:
        return largest_tenants(trace(TRACES / f"{SOURCES['philly'].file}.csv.gz", seed=0, scale=3.0), 5)
    tasks = window_of(cell.source, cell.load, cell.window)
    return with_deadlines(tasks, cell.window) if cell.variant == "deadlines" else tasks


def with_deadlines(tasks: list[Arrival], seed: int) -> list[Arrival]:
    """Every third task is due 1.5 to 4 times its expected duration after it arrives."""
    draw = Random(seed)
    due = [task.at + round(task.worst * PRIOR * draw.uniform(1.5, 4)) for task in tasks]
    return [replace(task, deadline=due[at]) if at % 3 == 0 else task for at, task in enumerate(tasks)]


def setup_of(cell: Cell) -> Setup:
    """Plans are at most one a simulated minute on windows, one in five minutes over the week."""
    week = cell.source == WEEK
    gpus = WEEK_GPUS if week else GPUS
    setup = Setup(gpus // NODE_GPUS, prior=PRIOR, coalesce=300 if week else 60)
    if cell.policy in PREEMPTING:
        setup = replace(setup, leave=LEAVE_SECONDS)
    if cell.variant == SLOW_SWITCH:
        setup = replace(setup, leave=SLOWER * LEAVE_SECONDS, resume=SLOWER * setup.resume)
    elif cell.variant == "mixed":
        setup = replace(setup, speeds=MIXED)
    elif cell.variant == "drains":
        setup = replace(setup, drains=DRAINS)
    return replace(setup, fair=True, bound=BOUND) if cell.fair else setup


def run_cell(cell: Cell) -> dict[str, Any]:
    """The cell's figures, JSON-ready. Raises BadPlan or ValueError as the simulator does."""
    tasks, setup = tasks_of(cell), setup_of(cell)
    if cell.policy == ALONE:
        return {"tenants": _alone(tasks, setup)}
    *_, outcome = simulate(tasks, POLICIES[cell.policy], setup)
    found = metrics(outcome)
    hours = found["makespan"] / 3600
    return {
        **found,
        "replans_per_hour": outcome.plans / hours,
        "preempted_per_hour": outcome.preempted / hours,
        "preempted_for_shorter_per_hour": outcome.for_shorter / hours,
        "methods": outcome.methods,
        "checked": outcome.checked,
        "tenants": _by_tenant(outcome),
    }


def _alone(tasks: list[Arrival], setup: Setup) -> dict[str, float]:
    found: dict[str, float] = {}
    for tenant in sorted({task.tenant for task in tasks}):
        *_, outcome = simulate([task for task in tasks if task.tenant == tenant], POLICIES["easy_wsap"], setup)
        found |= _by_tenant(outcome)
    return found


def _by_tenant(outcome: Outcome) -> dict[str, float]:
    """Mean completion in seconds of each tenant's tasks."""
    seconds = defaultdict[str, list[int]](list)
    for ran in outcome.ran:
        if ran.ended is not None:
            seconds[ran.task.tenant].append(ran.ended - ran.task.at)
    return {tenant: fmean(values) for tenant, values in seconds.items()}
