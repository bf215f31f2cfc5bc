"""What was decided for a problem: a plan, and how it came about. Values only, so that who tells of a plan needs no solver."""

from dataclasses import dataclass

from service.scheduler.core.problem import Missed, Start


@dataclass(frozen=True)
class Decision:
    """A start for every placeable task, and how it came about.

    `objective` and `bound` are over the tasks the solver saw, at their narrowest (for method `start` all, as they start); of a
    closed batch they are makespans. `status` is CP-SAT's word. `late` names the deadlines that this plan will miss.
    """

    starts: tuple[Start, ...]
    method: str  # start, greedy, cpsat or batch
    objective: int
    status: str | None = None
    bound: float | None = None
    note: str | None = None
    late: tuple[Missed, ...] = ()
