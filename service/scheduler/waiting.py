"""Why a task waits, in a code for programs and a sentence for people, with its place and its expected start and end.

Values only: knows no database. Codes: no_node, no_node_fits, reserved, capacity.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from service.scheduler.problem import Problem, Queued, Start

_SAME_SECONDS = 15.0  # an expected start that moved less is not told anew,
_SAME_PART = 0.1  # nor one that moved by less than this part of what is left


@dataclass(frozen=True)
class Offer:
    """What a node offers, in numbers for a sentence."""

    name: str
    gpus: int
    memory_bytes: int


def explain(
    problem: Problem, starts: tuple[Start, ...], offers: Mapping[str, Offer], needs: Mapping[str, int], at: datetime
) -> dict[str, dict[str, Any]]:
    """JSON-ready reasons for every queued task that does not start now; `needs` is bytes of each GPU, by task."""
    planned = {start.task: start for start in starts}
    later = sorted((s for s in starts if s.start > 0), key=lambda s: (s.start, s.end))
    places = {start.task: place for place, start in enumerate(later, 1)}
    unplaced = [task.id for task in problem.queued if task.id not in planned]
    places |= {task: len(later) + at for at, task in enumerate(unplaced, 1)}
    free = _free_now(problem, starts)
    reasons: dict[str, dict[str, Any]] = {}
    for task in problem.queued:
        start = planned.get(task.id)
        if start is not None and start.start == 0:
            continue
        if start is None:
            code, sentence = _unfit(task, offers, needs[task.id])
        else:
            code, sentence = _busy(problem, task, start, free, offers[start.node].name)
        reasons[task.id] = {
            "code": code,
            "sentence": sentence,
            "place": places[task.id],
            "expected_start": _moment(at, start.start) if start else None,
            "expected_end": _moment(at, start.end) if start else None,
        }
    return reasons


def differs(before: Mapping[str, Any] | None, after: Mapping[str, Any], at: datetime) -> bool:
    """Whether the change is worth telling: another code or place, or a start that moved by more than a little."""
    if before is None or any(before.get(name) != after[name] for name in ("code", "place")):
        return True
    if before["expected_start"] is None or after["expected_start"] is None:
        return before["expected_start"] != after["expected_start"] or before["sentence"] != after["sentence"]
    then, now = datetime.fromisoformat(before["expected_start"]), datetime.fromisoformat(after["expected_start"])
    left = (now - at).total_seconds()
    return abs((now - then).total_seconds()) > max(_SAME_SECONDS, _SAME_PART * left)


def _moment(at: datetime, seconds: int) -> str:
    return (at + timedelta(seconds=seconds)).isoformat()


def _free_now(problem: Problem, starts: tuple[Start, ...]) -> dict[str, int]:
    gpus = {task.id: task.gpus for task in problem.queued}
    free = {node.id: node.gpus for node in problem.nodes}
    for running in problem.running:
        free[running.node] -= running.gpus
    for start in starts:
        free[start.node] -= gpus[start.task] if start.start == 0 else 0
    return free


def _unfit(task: Queued, offers: Mapping[str, Offer], need: int) -> tuple[str, str]:
    if not offers:
        return "no_node", "No node is ready; the task starts when one joins that has room for it."
    widest = max(offers.values(), key=lambda offer: offer.gpus)
    if task.gpus > widest.gpus:
        return (
            "no_node_fits",
            f"The task asks for {_gpus(task.gpus)} of one node, but the largest node, {widest.name}, has {widest.gpus}; "
            "it waits until a larger one joins.",
        )
    roomiest = max((o for o in offers.values() if o.gpus >= task.gpus), key=lambda offer: offer.memory_bytes)
    return (
        "no_node_fits",
        f"The base model's weights need at least {_gib(need)} of each GPU, but the roomiest node with {_gpus(task.gpus)}, "
        f"{roomiest.name}, has {_gib(roomiest.memory_bytes)}; ask for more GPUs, or wait until a larger node joins.",
    )


def _busy(problem: Problem, task: Queued, start: Start, free: Mapping[str, int], name: str) -> tuple[str, str]:
    fitting = [node for node, seconds in zip(problem.nodes, task.seconds, strict=True) if seconds is not None]
    open_now = max(free[node.id] for node in fitting)
    if open_now >= task.gpus:
        return (
            "reserved",
            f"{_gpus(open_now)} stand free, but starting this task on them would delay one that weighs more; "
            f"it is planned for {name}.",
        )
    total = sum(node.gpus for node in fitting)
    return (
        "capacity",
        f"The task needs {_gpus(task.gpus)} of one node, and none of the {_gpus(total)} it could run on stand free for it "
        f"(at most {open_now} on one node); it is planned for {name}.",
    )


def _gpus(number: int) -> str:
    return "1 GPU" if number == 1 else f"{number} GPUs"


def _gib(size: int) -> str:
    return f"{size / 2**30:.2f} GiB"
