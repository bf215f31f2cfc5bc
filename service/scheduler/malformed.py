"""What makes a problem meaningless, in words that name the field. Values only."""

from service.scheduler.problem import Node, Problem, Queued


def malformed(problem: Problem) -> list[str]:
    """What makes a problem meaningless, in words that name the field."""
    wrong = []
    for what, ids in (
        ("nodes", [node.id for node in problem.nodes]),
        ("running and queued", [*(task.id for task in problem.running), *(task.id for task in problem.queued)]),
        ("limits", [limit.tenant for limit in problem.limits]),
    ):
        if len(set(ids)) != len(ids):
            wrong.append(f"{what}: {next(name for name in ids if ids.count(name) > 1)} stands there twice")
    names = {node.id for node in problem.nodes}
    wrong += [f"node {node.id}: gpus is {node.gpus}, must be positive" for node in problem.nodes if node.gpus < 1]
    wrong += [
        f"limit of {limit.tenant}: gpus is {limit.gpus}, must not be negative" for limit in problem.limits if limit.gpus < 0
    ]
    for run in problem.running:
        if run.node not in names or run.gpus < 1 or run.remaining < 1:
            wrong.append(f"running {run.id}: {run.gpus} GPUs of node {run.node} for {run.remaining} s is not possible")
    smallest = min((node.gpus for node in problem.nodes), default=1 << 30)
    judged: dict[_Seconds, tuple[int, int]] = {}  # many tasks share their durations
    for task in problem.queued:
        for width in task.widths:
            if width.seconds not in judged:
                judged[width.seconds] = _judge(width.seconds, problem.nodes, smallest)
        wrong += [f"queued {task.id}: {why}" for why in _malformed_task(task, len(problem.nodes), judged)]
    return wrong


_Seconds = tuple[int | None, ...]


def _judge(seconds: _Seconds, nodes: tuple[Node, ...], smallest: int) -> tuple[int, int]:
    """The least duration, and the GPUs of the smallest node that it claims to fit."""
    present = [s for s in seconds if s is not None]
    if len(present) == len(nodes):
        return min(present, default=1), smallest
    fits = [node.gpus for node, s in zip(nodes, seconds, strict=False) if s is not None]
    return min(present, default=1), min(fits, default=1 << 30)


def _malformed_task(task: Queued, nodes: int, judged: dict[_Seconds, tuple[int, int]]) -> list[str]:
    wrong = [] if task.weight >= 1 else [f"weight is {task.weight}, must be positive"]
    gpus = [width.gpus for width in task.widths]
    if gpus[0] < 1 or sorted(set(gpus)) != gpus:
        wrong.append(f"widths are {gpus}, must be positive and rise")
    for width in task.widths:
        if len(width.seconds) != nodes:
            wrong.append(f"seconds names {len(width.seconds)} nodes, there are {nodes}")
            continue
        least, roomy = judged[width.seconds]
        if least < 1:
            wrong.append("seconds must be positive, or None where it does not fit")
        if roomy < width.gpus:
            wrong.append(f"seconds says it fits a node of {roomy} GPUs, but it takes {width.gpus}")
    return wrong
