"""Problems as JSON-ready documents, stored with each plan so that it can be made again. Values only."""

from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

from service.scheduler.core.joins.slowdowns import Member, Sharing
from service.scheduler.core.problem import (
    Arrived,
    Limit,
    PlanNode,
    Preemptible,
    Queued,
    RunningExecutor,
    SchedulingProblem,
    Seconds,
    Width,
    alike,
)


def problem_to_json(problem: SchedulingProblem) -> dict[str, Any]:
    """Complete but for a limit's `beside`, which no plan needs: `problem_from_json` returns an equal problem."""
    return {
        "nodes": [asdict(node) for node in problem.nodes],
        "running": [_told_running(task) for task in problem.running],
        "queued": [_said(task) for task in problem.queued],
        "limits": [{"tenant": limit.tenant, "gpus": limit.gpus} for limit in problem.limits],
        "closed": problem.closed,
        "recent": [list(arrived) for arrived in problem.recent],
        **({} if problem.leave is None else {"leave": problem.leave, "dues": [list(due) for due in problem.dues]}),
    }


def problem_from_json(said: Mapping[str, Any]) -> SchedulingProblem:
    return SchedulingProblem(
        nodes=tuple(PlanNode(**node) for node in said["nodes"]),
        running=tuple(_heard_running(task) for task in said["running"]),
        queued=tuple(_queued(task, len(said["nodes"])) for task in said["queued"]),
        limits=tuple(Limit(**limit) for limit in said.get("limits", ())),
        closed=said.get("closed", False),
        recent=tuple(Arrived(*arrived) for arrived in said.get("recent", ())),
        leave=said.get("leave"),
        dues=tuple((tenant, gpus) for tenant, gpus in said.get("dues", ())),
    )


def _told(seconds: Seconds) -> int | list[int | None] | None:
    return seconds[0] if alike(seconds) else list(seconds)


def _heard(said: int | list[int | None] | None, nodes: int) -> Seconds:
    return tuple(said) if isinstance(said, list) else (said,) * nodes


def _said(task: Queued) -> dict[str, Any]:
    """As `asdict`, without its deep copy of every number."""
    said = {field.name: getattr(task, field.name) for field in fields(task)}
    wider = [{"gpus": width.gpus, "seconds": _told(width.seconds)} for width in task.wider]
    if task.batch is None:
        del said["batch"]  # a version that knows no batches can read what holds none
    for name in ("ran", "preempts", "needs"):
        if not said[name]:
            del said[name]  # and one that knows no preemption for shorter tasks, or no GPUs by node, what has none
    del said["sharing"]
    if any(task.sharing):
        alike = task.sharing.count(task.sharing[0]) == len(task.sharing)
        kinds = task.sharing[:1] if alike else task.sharing
        said["sharing"] = [None if kind is None else asdict(kind) for kind in kinds]
    return said | {"seconds": _told(task.seconds), "wider": wider}


def _queued(said: Mapping[str, Any], nodes: int) -> Queued:
    wider = tuple(Width(width["gpus"], _heard(width["seconds"], nodes)) for width in said.get("wider", ()))
    barred = tuple((node, bar) for node, bar in said.get("barred", ()))
    sharing = tuple(None if kind is None else Sharing(**kind) for kind in said.get("sharing", ()))
    sharing = sharing * nodes if len(sharing) == 1 else sharing
    read = {"wider": wider, "barred": barred, "sharing": sharing, "needs": tuple(said.get("needs", ()))}
    return Queued(**{**said, "seconds": _heard(said["seconds"], nodes), **read})


def _told_running(run: RunningExecutor) -> dict[str, Any]:
    said = asdict(run)
    if not run.members:
        del said["members"], said["correction"]  # a version that knows no sharing can read what has none
    for member in said.get("members", ()):
        if member["deadline"] is None:
            del member["deadline"]  # and one that knows no deadlines of members
    if run.preemptible is None:
        del said["preemptible"]
    if not run.sharers:
        del said["sharers"]
    return said


def _heard_running(said: Mapping[str, Any]) -> RunningExecutor:
    members = tuple(Member(**{**one, "sharing": Sharing(**one["sharing"])}) for one in said.get("members", ()))
    preemptible = Preemptible(**said["preemptible"]) if said.get("preemptible") else None
    sharers = tuple((tenant, gpus) for tenant, gpus in said.get("sharers", ()))
    return RunningExecutor(**{**said, "members": members, "preemptible": preemptible, "sharers": sharers})
