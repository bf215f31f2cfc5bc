"""Independent plan checker: assigns GPUs by number, event by event, and trusts none of the planner's own claims.

Shares no code with the product's `violations`.
"""

from collections.abc import Iterable

from service.scheduler.core.problem import SchedulingProblem, Start


class BadPlan(AssertionError):
    """The plan breaks a rule; the message says which."""


def check(problem: SchedulingProblem, starts: Iterable[Start]) -> int:
    """Hand out GPU numbers in order of start and raise BadPlan if they run out; returns how many starts were checked."""
    ids = {node.id: at for at, node in enumerate(problem.nodes)}
    queued = {task.id: task for task in problem.queued}
    until: dict[str, list[int]] = {node.id: [0] * node.gpus for node in problem.nodes}
    worth = {node.id: round(node.worth, 3) for node in problem.nodes}  # limits resolve to a thousandth
    tenants: dict[str, list[tuple[int, int, float]]] = {limit.tenant: [] for limit in problem.limits}
    for run in sorted(problem.running, key=lambda run: -run.remaining):
        free = [at for at, busy in enumerate(until[run.node]) if not busy]
        for at in free[: run.gpus]:  # a node may have shrunk below its running tasks
            until[run.node][at] = run.remaining
        if run.tenant in tenants:
            tenants[run.tenant].append((0, run.remaining, run.gpus * worth[run.node]))
    begun: dict[str, list[int]] = {limit.tenant: [] for limit in problem.limits}
    seen: set[str] = set()
    for start in sorted(starts, key=lambda start: (start.start, start.end)):
        if start.task in seen or start.task not in queued:
            raise BadPlan(f"{start.task} starts twice, or was never queued")
        seen.add(start.task)
        task, node = queued[start.task], problem.nodes[ids[start.node]]
        if node.drained:
            raise BadPlan(f"{start.task} starts on {node.id}, which is drained")
        at = ids[node.id]
        durations = {w.gpus: w.seconds[at] for w in task.wider} | {
            (task.needs or (task.gpus,) * (at + 1))[at]: task.seconds[at]
        }
        if durations.get(start.gpus) != start.end - start.start:
            raise BadPlan(f"{start.task} takes {start.end - start.start} s on {start.gpus} GPUs, not {durations}")
        _occupy(until[node.id], start.gpus, start.start, start.end, start.task)
        if task.tenant in tenants:
            tenants[task.tenant].append((start.start, start.end, start.gpus * worth[node.id]))
            begun[task.tenant] += [start.start] if worth[node.id] else []  # nodes of zero worth cannot break a limit
    for limit in problem.limits:
        for moment in begun[limit.tenant]:
            taken = sum(gpus for begin, end, gpus in tenants[limit.tenant] if begin <= moment < end)
            if taken > limit.gpus + 1e-9:
                raise BadPlan(f"{limit.tenant} holds {taken:g} GPUs at {moment}, its limit is {limit.gpus}")
    return len(seen)


def _occupy(gpus: list[int], count: int, begin: int, end: int, name: str) -> None:
    free = [at for at, busy in enumerate(gpus) if busy <= begin]
    if begin < 0 or len(free) < count:
        raise BadPlan(f"{name} needs {count} GPUs at {begin}, {len(free)} are free")
    for at in free[:count]:
        gpus[at] = end
