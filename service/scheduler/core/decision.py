"""A decision: the plan for a problem, and how the planner found it. Values only, so that explaining a plan needs no solver."""

from dataclasses import dataclass

from service.scheduler.core.problem import Missed, Start


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
    solver's, all others the rules'.
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
