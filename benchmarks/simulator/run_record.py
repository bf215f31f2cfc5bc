"""What a simulated run is given and what it leaves behind. Values only."""

from dataclasses import dataclass, field

from benchmarks.simulator.arrivals import Arrival
from benchmarks.simulator.tenant_shares import Record


@dataclass(frozen=True)
class Setup:
    """The fleet and the house rules of a run. `prior` is the part of the worst case that tasks are believed to take.

    `speeds` are the nodes' (a task takes its seconds divided by them; empty: all 1), `drains` are (second, node's number,
    whether it drains). `widths`: what tasks say of `max_gpus` is heeded.
    """

    nodes: int
    node_gpus: int = 8
    prior: float = 1.0
    fair: bool = False  # weights by fair share and age; else by priority alone
    bound: float | None = None  # seconds a task that its tenant's due covers may wait before GPUs are taken back for it
    half_life: float = 4 * 3600.0
    coalesce: int = 0  # seconds between plans at the least
    speeds: tuple[float, ...] = ()
    drains: tuple[tuple[int, int, bool], ...] = ()
    widths: bool = False


@dataclass
class Ran:
    """A task and what became of it; `placed` are (node, start, end) of each placement, seconds. `left` is of its true
    duration at speed 1 and its narrowest."""

    task: Arrival
    left: float
    started: int | None = None
    ended: int | None = None
    placed: list[tuple[str, int, int]] = field(default_factory=list)
    queued_at: int = 0
    waited: int = 0  # in earlier queueings


@dataclass
class Outcome:
    """What a run left behind. `moves` and `kept` count planned tasks that did or did not change node between two plans;
    `foretold` are deadlines that a plan said it would miss, before the task ended."""

    setup: Setup
    ran: list[Ran]
    record: Record
    plans: int = 0
    checked: int = 0
    cpu: list[float] = field(default_factory=list)
    wall: list[float] = field(default_factory=list)
    moves: int = 0
    kept: int = 0
    preempted: int = 0
    methods: dict[str, int] = field(default_factory=dict)
    foretold: set[str] = field(default_factory=set)
