"""What goes into the solver besides the problem, and what a plan is: search budget, search result, decision.

Values only: code that explains or estimates plans imports this module, and so never loads the solver.
"""

from dataclasses import dataclass

from service.scheduler.core.plan_objective import Missed
from service.scheduler.core.problem import Start


@dataclass(frozen=True)
class SearchBudget:
    """Search limits. `deterministic` is in CP-SAT's own unit of work, not seconds; `wall` is in seconds and only a guard.

    `batch` is the most tasks of a closed batch that are polished, with the deterministic limit `polish`.
    """

    window: int = 8
    nodes: int = 8
    deterministic: float = 0.001  # a hundredth of a CPU second; six times as much on twice the nodes found the same plans
    conflicts: int = 200  # on few crowded nodes a conflict costs far more than deterministic time shows
    wall: float = 5.0
    batch: int = 50
    polish: float = 2.0


@dataclass(frozen=True)
class SearchResult:
    """CP-SAT's status, bound and starts; without starts, `note` says that the budget was too small."""

    status: str
    starts: tuple[Start, ...] | None = None
    bound: float | None = None
    note: str | None = None


@dataclass(frozen=True)
class Join:
    """A queued task that starts now on the executor of the running (or just started) task `beside`, on `node`, and ends `end`
    seconds from now. `among` is how many tasks were there before, `slowdown` its own against running alone while all are there,
    `worst` the largest of anybody's, `sooner` by how many seconds it ends sooner than by waiting; None: it had no start."""

    task: str
    beside: str
    node: str
    gpus: int
    end: int
    among: int
    slowdown: float
    worst: float
    sooner: int | None = None


@dataclass(frozen=True)
class ShortPreemption:
    """The queued `task` takes GPUs of `node` from the running `victims` for `seconds`, and starts `sooner` seconds before its
    planned start, or before the first victim would end."""

    task: str
    node: str
    victims: tuple[str, ...]
    seconds: int
    sooner: int


@dataclass(frozen=True)
class BatchPlan:
    """How one batch's waiting tasks were arranged: seconds until the last one ends, the method, CP-SAT's status and bound."""

    batch: str
    makespan: int
    method: str  # start, rules, longest_first, greedy, batch or cpsat
    status: str | None = None
    bound: float | None = None


@dataclass(frozen=True)
class Decision:
    """A start for every placeable task, and how the plan was found.

    `objective` and `bound` cover the tasks that the solver saw, at their narrowest (for method `start`: all, as they start);
    for a closed batch they are makespans. `status` is CP-SAT's status. `late` lists the deadlines that this plan will miss.
    Who decided what: `held` tasks would fit now and are held back for foreseen arrivals, the starts of `solved` are the
    solver's, all others the rules'. Tasks in `joins` have no start: they begin now on executors of others, by joining.py.
    `preemptions` were made for this plan, by shortest_remaining.py.
    """

    starts: tuple[Start, ...]
    method: str  # start, greedy, cpsat or batch
    objective: int
    status: str | None = None
    bound: float | None = None
    note: str | None = None
    late: tuple[Missed, ...] = ()
    held: tuple[str, ...] = ()
    solved: tuple[str, ...] = ()
    batches: tuple[BatchPlan, ...] = ()
    joins: tuple[Join, ...] = ()
    preemptions: tuple[ShortPreemption, ...] = ()
