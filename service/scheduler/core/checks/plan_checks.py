"""Checks a plan against its problem, in words; counts running tasks' GPUs on nodes that may have shrunk. Values only."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace

from service.scheduler.core.problem import RunningExecutor, SchedulingProblem, Start


def violations(problem: SchedulingProblem, starts: Iterable[Start]) -> list[str]:
    """The plan's violations, in words: an overfull node or limit, a wrong duration or node, a task planned twice."""
    tasks = {task.id: task for task in problem.queued}
    places = {node.id: at for at, node in enumerate(problem.nodes)}
    on_nodes: dict[str, list[Start]] = defaultdict(list)
    of_tenants: dict[str, list[Start]] = defaultdict(list)
    runs: dict[str, list[RunningExecutor]] = defaultdict(list)
    for run in problem.running:
        runs[run.node].append(run)
    wrong: list[str] = []
    for start in starts:
        task = tasks.pop(start.task, None)
        if task is None or start.node not in places:
            wrong.append(f"{start.task} is not queued, stands twice, or names a node that is not there")
            continue
        at = places[start.node]
        seconds = next((width.seconds[at] for width in task.widths if width.on(at) == start.gpus), None)
        if problem.nodes[at].drained or seconds is None or start.start < 0 or start.end - start.start != seconds:
            wrong.append(
                f"{start.task} needs {seconds} s on {start.gpus} GPUs of {start.node}, not {start.start} to {start.end}"
            )
        on_nodes[start.node].append(start)
        of_tenants[task.tenant].append(start)
    for node in problem.nodes:
        wrong += _overfull(node.id, node.gpus, runs[node.id], on_nodes[node.id])
    for limit in problem.limits:
        counts = problem.units
        theirs = [replace(run, gpus=run.units_of(limit.tenant, counts[run.node])) for run in problem.running]
        begun = [replace(start, gpus=start.gpus * counts[start.node]) for start in of_tenants[limit.tenant]]
        wrong += _overfull(f"{limit.tenant} (GPUs by units)", limit.units, theirs, begun)
    return wrong


def _overfull(name: str, gpus: int, running: Iterable[RunningExecutor], starts: Iterable[Start]) -> list[str]:
    changes = [change for seconds, part in held(running, gpus) for change in ((0, part), (seconds, -part))]
    changes += [change for start in starts for change in ((start.start, start.gpus), (start.end, -start.gpus))]
    taken = 0
    for at, change in sorted(changes):  # negative changes sort first, so at one moment ends come before starts
        taken += change
        if taken > gpus:
            return [f"{name} has {gpus} GPUs, {taken} are taken at {at}"]
    return []


def held(running: Iterable[RunningExecutor], gpus: int) -> list[tuple[int, int]]:
    """(seconds, GPUs) that `running` holds, capped at `gpus` together: the node may have shrunk since the tasks started."""
    left, found = gpus, []
    for run in sorted(running, key=lambda run: -run.remaining):
        if left:
            found.append((run.remaining, min(left, run.gpus)))
        left = max(0, left - run.gpus)
    return found
