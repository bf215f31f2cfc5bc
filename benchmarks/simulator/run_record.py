"""A simulated run's inputs and results. Values only."""

from dataclasses import dataclass, field

from benchmarks.simulator.arrivals import Arrival
from benchmarks.simulator.tenant_shares import Record

LEAVE_SECONDS = 10  # as the service expects (state/live_executors.py)
RESUME_SECONDS = 60  # loading the base and the checkpoint; the service expects as much where nothing is measured
PREEMPTING = ("rules", "ours")  # policies whose tasks preempt longer ones


@dataclass(frozen=True)
class Setup:
    """The fleet and the rules of a run. `prior` is the expected share of the worst case that tasks take.

    `speeds` are the nodes' (a task's seconds are divided by them; empty: all 1), `drains` are (second, node's number, whether
    it drains). `widths`: whether tasks' `max_gpus` applies.
    """

    nodes: int
    node_gpus: int = 8
    prior: float = 1.0
    fair: bool = False  # weights by fair share and age; otherwise by priority alone
    bound: float | None = None  # wait in seconds after which GPUs are preempted for a task within its tenant's share
    half_life: float = 4 * 3600.0
    coalesce: int = 0  # minimum seconds between plans
    speeds: tuple[float, ...] = ()
    drains: tuple[tuple[int, int, bool], ...] = ()
    widths: bool = False
    leave: int | None = None  # seconds until a task that is preempted for a shorter one has left; None: none is preempted
    resume: int = RESUME_SECONDS  # until a preempted task trains again once it has GPUs


@dataclass
class Ran:
    """A task's run; `placed` are (node, start, end) of each placement, seconds. `left` is what remains of its true duration at
    speed 1 and narrowest width."""

    task: Arrival
    left: float
    started: int | None = None
    ended: int | None = None
    placed: list[tuple[str, int, int]] = field(default_factory=list)
    queued_at: int = 0
    waited: int = 0  # in earlier stays in the queue


@dataclass
class Outcome:
    """A run's results. `moves` and `kept` count planned tasks that did or did not change node between two plans; `foretold` are
    deadlines that a plan predicted to miss, before the task ended."""

    setup: Setup
    ran: list[Ran]
    record: Record
    plans: int = 0
    checked: int = 0
    cpu: list[float] = field(default_factory=list)
    wall: list[float] = field(default_factory=list)
    moves: int = 0
    kept: int = 0
    preempted: int = 0  # in all,
    for_shorter: int = 0  # and those for a shorter task
    methods: dict[str, int] = field(default_factory=dict)
    foretold: set[str] = field(default_factory=set)
