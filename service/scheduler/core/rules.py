"""Rule-based plans: start what fits, and backfill that delays no reservation. The fallback, and the solver's first hint.

The order is ascending seconds x root of GPUs / weight.
"""

from collections.abc import Sequence

from service.scheduler.core.expected_arrivals import ExpectedArrivals, queue_size
from service.scheduler.core.problem import LATE_FACTOR, Queued, SchedulingProblem, Start
from service.scheduler.core.timeline import Timeline

RESERVED = 20  # waiting tasks with reserved GPUs; with only one, later arrivals would push back all others
_Later = tuple[Queued, int]  # a task, and the second before which it is held back
EXACT = 24  # waiting tasks that are fitted into holes; those behind them are appended at the ends


def ranked(problem: SchedulingProblem) -> list[Queued]:
    """The placeable tasks by ascending seconds x sqrt(GPUs) / weight; ties by arrival.

    A task that misses its deadline unless it starts within its own duration weighs 1 + LATE_FACTOR times as much.
    """
    ranks = {}
    for task, shortest in zip(problem.queued, problem.shortest.tolist(), strict=True):
        urgent = task.deadline is not None and task.deadline < 2 * shortest
        ranks[task.id] = queue_size(task.on_fastest, shortest) / (task.weight * (1 + LATE_FACTOR if urgent else 1))
    return sorted(problem.placeable, key=lambda task: ranks[task.id])


def by_rule(problem: SchedulingProblem) -> tuple[tuple[Start, ...], tuple[str, ...]]:
    """The plan without the solver, and the tasks that it holds back for arrivals."""
    order = ranked(problem)
    arrivals = ExpectedArrivals(problem, order)
    starts = start_all(problem, arrivals)
    if starts is None:
        starts = backfill(problem, order, arrivals=arrivals)
        starts = starts if arrivals.held else widened(problem, starts)
    return starts, tuple(arrivals.held)


def start_all(problem: SchedulingProblem, arrivals: ExpectedArrivals | None = None) -> tuple[Start, ...] | None:
    """A start at 0 for every placeable task, widest first, then widened onto free GPUs; None if they do not all fit, or if
    `arrivals` holds one back."""
    if sum(task.gpus for task in problem.placeable) > sum(node.gpus for node in problem.nodes):
        return None
    timeline, starts = Timeline(problem), []
    for task in sorted(problem.placeable, key=lambda task: -task.gpus):
        start = timeline.now(task)
        if start is None or (arrivals is not None and arrivals.hold_until(task, start, timeline)):
            return None
        starts.append(timeline.put(start))
    return widened(problem, starts)


def backfill(
    problem: SchedulingProblem,
    order: Sequence[Queued] | None = None,
    timeline: Timeline | None = None,
    planned: Sequence[Start] = (),
    reserved: int = RESERVED,
    arrivals: ExpectedArrivals | None = None,
) -> tuple[Start, ...]:
    """`planned`, unchanged, then every other task of `order`: at 0 if that delays no reservation, and if `arrivals` does not
    hold it back for arrivals.

    The first `reserved` tasks that cannot start at 0 get a reservation where they end first; later starts of `planned` count
    among them. All others are placed in the same order where they would start next: their expected starts. `timeline` is the
    problem's empty timeline; the call consumes it.
    """
    timeline, later = timeline or Timeline(problem), list[_Later]()
    if arrivals is not None:
        arrivals.held.clear()
    starts = [timeline.put(start) for start in planned]
    placed = {start.task for start in starts}
    reserved -= sum(start.start > 0 for start in starts)
    for task in ranked(problem) if order is None else order:
        if task.id in placed:
            continue
        start = timeline.now(task) if timeline.most_free >= task.gpus else None
        if start is not None and arrivals is not None and (until := arrivals.hold_until(task, start, timeline)):
            later.append((task, until))
            continue
        if start is None and reserved > 0:
            start, reserved = timeline.best(task), reserved - 1
        if start is None:
            later.append((task, 0))
        else:
            starts.append(timeline.put(start))
    return tuple(starts) + _in_turn(timeline, later)


def lpt(problem: SchedulingProblem) -> tuple[Start, ...]:
    """Longest processing time first, ties wider first, each where it ends first: a short makespan for a closed batch."""
    return longest_first(Timeline(problem), problem.placeable)


def longest_first(timeline: Timeline, tasks: Sequence[Queued]) -> tuple[Start, ...]:
    """As `lpt`, for some of the tasks, beside what `timeline` holds already."""
    order = sorted(tasks, key=lambda task: (-(task.shortest or 0) * task.on_fastest, -task.on_fastest))
    return _in_turn(timeline, [(task, 0) for task in order])


def widened(problem: SchedulingProblem, starts: Sequence[Start]) -> tuple[Start, ...]:
    """The same starts, longest first, each widened as far as that helps on GPUs that all starts leave free. None starts later.

    Starts later than 0 stay as they are unless the batch is closed: tasks that arrive before may need the GPUs.
    """
    able = {task.id: task for task in problem.queued if task.wider}
    may = [start for start in starts if start.task in able and (problem.closed or start.start == 0)]
    if not may:
        return tuple(starts)
    timeline = Timeline(problem)
    wide = {start.task: timeline.put(start) for start in starts}
    for start in sorted(may, key=lambda start: -start.end):
        wide[start.task] = timeline.widen(able[start.task], start)
    return tuple(wide[start.task] for start in starts)


def _in_turn(timeline: Timeline, tasks: Sequence[_Later]) -> tuple[Start, ...]:
    found: list[Start | None] = []
    for task, after in tasks[:EXACT]:
        start = timeline.best(task, after)
        found.append(timeline.put(start) if start is not None else None)
    if len(tasks) > EXACT:
        tails = timeline.tails()
        found += [tails.put(task, after) for task, after in tasks[EXACT:]]
    return tuple(start for start in found if start is not None)
