"""Formats what a new plan says to the owners of waiting tasks: reason codes joined with names. Touches no rows."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import cache, partial
from typing import Any

from contract.gpu_counts import device_word
from service.fleet.base_models.gpu_fit import memory_of
from service.scheduler.core.decision import Decision
from service.scheduler.core.joins.joining import settled_joins
from service.scheduler.core.problem import Start
from service.scheduler.estimate.node_shapes import shape_of
from service.scheduler.estimate.prediction_intervals import PredictedInterval
from service.scheduler.estimate.sharing_estimate import ALONE_AFTER
from service.scheduler.explain import waiting_sentences
from service.scheduler.explain.join_sentences import runs_alone
from service.scheduler.explain.reason_codes import Code, reasons
from service.scheduler.explain.width_sentences import FitWords, fit_words
from service.scheduler.state.live_executors import LEAVING_SECONDS
from service.scheduler.state.snapshot import Snapshot
from service.tasks.plan_status import unplanned_reasons


def reasons_of(seen: Snapshot, decision: Decision, between: Mapping[str, PredictedInterval]) -> dict[str, dict[str, Any]]:
    """The reason of every queued task that does not start now, JSON-ready."""
    joined = (Start(join.task, join.node, 0, join.end, join.gpus) for join in decision.joins)
    shown = scene(seen, (*decision.starts, *joined))
    late = {miss.task: float(miss.end - miss.deadline) for miss in decision.late}
    found = {
        reason.task: waiting_sentences.explain(reason, shown, seen.at, between.get(reason.task), late.get(reason.task))
        for reason in reasons(settled_joins(seen.problem, decision), decision.starts, seen.standing or None, decision.held)
    }
    for id in found.keys() & seen.tasks.keys():
        if seen.tasks[id].lost_executors >= ALONE_AFTER:
            found[id]["sentence"] += f" {runs_alone(seen.tasks[id].lost_executors)}"
    for id, reservation in seen.awaited.items():
        node = seen.nodes[reservation.node]
        held = f"{device_word([node.device_type])}s of {node.name}"
        room = f"{held} are being given back for it; it starts once the tasks there are safe."
        soon = (seen.at + timedelta(seconds=LEAVING_SECONDS)).isoformat()
        promised = {"expected_start": soon, "gpus": seen.narrowest(id, reservation.node)}
        found[id] = unplanned_reasons.unplanned_reason(Code.WAITING_FOR_CAPACITY, room) | promised
    left_out = seen.unread | seen.damaged
    found |= {id: unplanned_reasons.unplanned_reason(Code.WAITING_FOR_VERSION, why) for id, why in left_out.items()}
    return found | {id: unplanned_reasons.not_before(moment) for id, moment in seen.later.items()}


def scene(seen: Snapshot, starts: Sequence[Start]) -> waiting_sentences.Scene:
    """The names and numbers that sentences may use, once the starts at 0 are applied, joins among them."""
    offers = {
        id: waiting_sentences.Offer(node.name, len(node.devices), memory_of(node), seen.troubles.get(id, ""), node.device_type)
        for id, node in seen.nodes.items()
    }
    owners = {id: task.tenant_id for id, task in seen.tasks.items()}
    running = {run.id: run.node for run in seen.problem.running if run.id in seen.placements}
    running |= {run.id: run.node for run in seen.live if run.id in seen.placements}
    running |= {start.task: start.node for start in starts if start.start == 0}
    downloads = {start.task: said for start in starts if (said := download_first(seen, start)) is not None}
    names = {id: waiting_sentences.task_words(task.name, id) for id, task in seen.tasks.items()}
    shapes = sorted({*map(shape_of, seen.nodes.values())})
    words = cache(partial(fit_words, shapes=shapes))

    def fit(id: str) -> FitWords:
        return words(seen.work.fit(seen.tasks[id]))

    return waiting_sentences.Scene(offers, owners, seen.needs, running, seen.lacking, downloads, names, fit)


def download_first(seen: Snapshot, start: Start) -> str | None:
    """What the node of this start has to fetch before, in a sentence; None where it holds the base."""
    found = seen.downloads.missing(seen.tasks[start.task].base_model, start.node)
    if found is None:
        return None
    return waiting_sentences.downloads_first(seen.nodes[start.node].name, found.base, found.bytes, found.seconds)
