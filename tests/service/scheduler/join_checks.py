"""Checks the joins of a decision, in words. Values only."""

from collections.abc import Iterator
from dataclasses import replace

from service.scheduler.core.decision import Decision
from service.scheduler.core.joins.joining import begun, held_units, place_of, with_task
from service.scheduler.core.joins.slowdowns import broken_bounds, roomy
from service.scheduler.core.problem import SchedulingProblem


def join_violations(problem: SchedulingProblem, decision: Decision) -> Iterator[str]:
    """What is wrong with the decision's joins, in words: a task twice, another base, no room, a broken bound or quota."""
    after_starts = begun(problem, decision.starts)
    runs, tasks = {run.id: run for run in after_starts.running}, {task.id: task for task in after_starts.queued}
    planned = {start.task for start in decision.starts}
    for join in decision.joins:
        task, run = tasks.pop(join.task, None), runs.get(join.beside)
        if task is None or run is None or join.task in planned or not run.members or run.node != join.node:
            yield f"{join.task} is not queued, stands twice, or joins {join.beside}, which is not on {join.node} or not to join"
            continue
        place = place_of(after_starts, run)
        sharing = task.sharing[place] if task.sharing else None
        if sharing is None or task.seconds[place] is None or task.on(place) > run.gpus or after_starts.nodes[place].drained:
            yield f"{join.task} may not share {run.gpus} GPUs of {run.node}"
            continue
        runs[run.id] = with_it = with_task(run, task, place)
        if len({member.sharing.group for member in with_it.members}) > 1:
            yield f"{join.task} is of another base than {run.id}, which it joins"
        if not roomy(with_it.members):
            yield f"{join.task} joins {run.id}, where memory has no room for it"
        for broken in broken_bounds(with_it.members, run.gpus, run.correction):
            yield f"{join.task} joins {run.id}, and {broken} is slowed beyond its bound, or nearly"
    held = held_units(replace(after_starts, running=tuple(runs.values())))
    joiners = {join.task for join in decision.joins}
    for limit in problem.limits:
        begins = any(task.id in joiners and task.tenant == limit.tenant for task in problem.queued)
        if begins and held.get(limit.tenant, 0) > limit.units:
            yield f"{limit.tenant} holds {held[limit.tenant]} units with its joins, its quota is {limit.units}"
