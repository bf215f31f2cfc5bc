"""Plans by rule: start what fits, and EASY backfill with one reservation. The fallback, and the solver's first hint.

Order is WSAP: ascending seconds x GPUs / weight, which minimises weighted completion on a single GPU. Knows no solver.
"""

from collections.abc import Iterable, Sequence

from service.scheduler.board import Board
from service.scheduler.problem import LATE_FACTOR, Problem, Queued, Start

EXACT = 24  # so many of the waiting are fitted into holes; those behind them stand at the ends


def wsap(problem: Problem) -> list[Queued]:
    """The placeable tasks by ascending seconds x GPUs / weight; ties by arrival.

    A task that misses its deadline unless it starts within its own duration weighs as much more as its lateness costs.
    """
    ranks = {}
    for task, shortest in zip(problem.queued, problem.shortest.tolist(), strict=True):
        urgent = task.deadline is not None and task.deadline < 2 * shortest
        ranks[task.id] = shortest * task.gpus / (task.weight * (1 + LATE_FACTOR if urgent else 1))
    return sorted(problem.placeable, key=lambda task: ranks[task.id])


def start_all(problem: Problem) -> tuple[Start, ...] | None:
    """A start at 0 for every placeable task, widest first, wider still on GPUs that stay free; None if they do not all fit."""
    if sum(task.gpus for task in problem.placeable) > sum(node.gpus for node in problem.nodes):
        return None
    board, starts = Board(problem), []
    for task in sorted(problem.placeable, key=lambda task: -task.gpus):
        start = board.now(task)
        if start is None:
            return None
        starts.append(board.put(start))
    return widened(problem, starts)


def easy_wsap(problem: Problem, order: Sequence[Queued] | None = None, board: Board | None = None) -> tuple[Start, ...]:
    """Start in WSAP order until one does not fit; that one gets a reservation which later ones may not delay.

    Those that cannot start now stand where they would start next, in the same order: their expected starts. `board` is the
    problem's, with nothing put on it yet; it is spent.
    """
    board, starts, later = board or Board(problem), [], []
    reserved = False
    for task in wsap(problem) if order is None else order:
        start = board.now(task) if board.most_free >= task.gpus else None
        if start is None and not reserved:
            start, reserved = board.best(task), True
        if start is None:
            later.append(task)
        else:
            starts.append(board.put(start))
    return tuple(starts) + _in_turn(board, later)


def lpt(problem: Problem) -> tuple[Start, ...]:
    """Longest first, wider before narrower among equals, each where it ends first: a short makespan for a closed batch."""
    order = sorted(problem.placeable, key=lambda task: (-(task.shortest or 0) * task.gpus, -task.gpus))
    return _in_turn(Board(problem), order)


def complete(
    problem: Problem, starts: Iterable[Start], order: Sequence[Queued], board: Board | None = None
) -> tuple[Start, ...]:
    """`starts`, which stay as they are, and every other task of `order`: now, if that delays none of them, else in turn."""
    board = board or Board(problem)
    planned = [board.put(start) for start in starts]
    placed = {start.task for start in planned}
    later = []
    for task in order:
        if task.id in placed:
            continue
        start = board.now(task) if board.most_free >= task.gpus else None
        if start is None:
            later.append(task)
        else:
            planned.append(board.put(start))
    return tuple(planned) + _in_turn(board, later)


def widened(problem: Problem, starts: Sequence[Start]) -> tuple[Start, ...]:
    """The same starts, longest first each as wide as helps it on GPUs that all of them leave free."""
    tasks = {task.id: task for task in problem.queued}
    if not any(tasks[start.task].wider for start in starts):
        return tuple(starts)
    board = Board(problem)
    wide = {start.task: board.put(start) for start in starts}
    for start in sorted(starts, key=lambda start: -start.end):
        wide[start.task] = board.widen(tasks[start.task], start)
    return tuple(wide[start.task] for start in starts)


def _in_turn(board: Board, tasks: Sequence[Queued]) -> tuple[Start, ...]:
    found: list[Start | None] = []
    for task in tasks[:EXACT]:
        start = board.best(task)
        found.append(board.put(start) if start is not None else None)
    if len(tasks) > EXACT:
        tails = board.tails()
        found += [tails.put(task) for task in tasks[EXACT:]]
    return tuple(start for start in found if start is not None)
