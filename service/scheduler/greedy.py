"""Plans by rule: start what fits, and EASY backfill with one reservation. The fallback, and the solver's first hint.

Order is WSAP: ascending seconds x GPUs / weight, which minimises weighted completion on a single GPU. Knows no solver.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable

from service.scheduler.problem import Problem, Queued, Start


class Profile:
    """Free GPUs of one node over time: a step function from 0 to forever."""

    def __init__(self, gpus: int) -> None:
        self._times, self._free = [0], [gpus]

    def take(self, start: int, end: int, gpus: int) -> None:
        """Occupy `gpus` from `start` until `end`."""
        first, last = self._cut(start), self._cut(end)
        for at in range(first, last):
            self._free[at] -= gpus

    def free(self, at: int) -> int:
        return self._free[bisect_right(self._times, at) - 1]

    def earliest(self, gpus: int, seconds: int) -> int:
        """The first moment from which `gpus` stay free for `seconds`. The node must have that many."""
        first = at = 0
        while at < len(self._times) and self._times[at] < self._times[first] + seconds:
            if self._free[at] < gpus:
                first = at + 1
            at += 1
        return self._times[first]

    def _cut(self, moment: int) -> int:
        at = bisect_left(self._times, moment)
        if at == len(self._times) or self._times[at] != moment:
            self._times.insert(at, moment)
            self._free.insert(at, self._free[at - 1])
        return at


class Board:
    """All nodes' profiles while a plan is made."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._profiles = [Profile(node.gpus) for node in problem.nodes]
        self._places = {node.id: at for at, node in enumerate(problem.nodes)}
        self._gpus = {task.id: task.gpus for task in problem.queued}
        for task in problem.running:
            self._profiles[self._places[task.node]].take(0, task.remaining, task.gpus)

    def put(self, start: Start) -> Start:
        self._profiles[self._places[start.node]].take(start.start, start.end, self._gpus[start.task])
        return start

    def best(self, task: Queued, now: bool = False) -> Start | None:
        """Where it would end first (ties: tightest fit, then node order). `now`: only where it starts at 0."""
        found: tuple[tuple[int, int, int], Start] | None = None
        for at, (node, seconds) in enumerate(zip(self._problem.nodes, task.seconds, strict=True)):
            if seconds is None or (now and self._profiles[at].free(0) < task.gpus):
                continue
            begin = self._profiles[at].earliest(task.gpus, seconds)
            key = (begin + seconds, self._profiles[at].free(begin), at)
            if not (now and begin) and (found is None or key < found[0]):
                found = key, Start(task.id, node.id, begin, begin + seconds)
        return found[1] if found else None


def wsap(problem: Problem) -> list[Queued]:
    """The placeable tasks by ascending seconds x GPUs / weight; ties by arrival."""
    return sorted(problem.placeable, key=lambda task: (task.shortest or 0) * task.gpus / task.weight)


def start_all(problem: Problem) -> tuple[Start, ...] | None:
    """A start at 0 for every placeable task, widest first; None if they do not all fit at once."""
    board, starts = Board(problem), []
    for task in sorted(problem.placeable, key=lambda task: -task.gpus):
        start = board.best(task, now=True)
        if start is None:
            return None
        starts.append(board.put(start))
    return tuple(starts)


def easy_wsap(problem: Problem) -> tuple[Start, ...]:
    """Start in WSAP order until one does not fit; that one gets a reservation which later ones may not delay.

    Those that cannot start now stand where they would start next, in the same order: their expected starts.
    """
    board, starts, later = Board(problem), [], []
    reserved = False
    for task in wsap(problem):
        start = board.best(task, now=True)
        if start is None and not reserved:
            start, reserved = board.best(task), True
        if start is None:
            later.append(task)
        else:
            starts.append(board.put(start))
    return tuple(starts) + _in_turn(board, later)


def complete(problem: Problem, starts: Iterable[Start]) -> tuple[Start, ...]:
    """`starts` and, in WSAP order, every other placeable task where it ends first without delaying any of them."""
    board = Board(problem)
    fixed = tuple(board.put(start) for start in starts)
    placed = {start.task for start in fixed}
    return fixed + _in_turn(board, [task for task in wsap(problem) if task.id not in placed])


def _in_turn(board: Board, tasks: Iterable[Queued]) -> tuple[Start, ...]:
    starts = []
    for task in tasks:
        start = board.best(task)
        if start is not None:
            starts.append(board.put(start))
    return tuple(starts)
