"""Translates a task's events into OpenAI's: a sentence for people, and data for programs."""

from typing import Any, Literal

from pydantic import BaseModel
from sqlalchemy import Select, select
from sqlalchemy.orm import Session

from contract.wording.row_words import overlap_told
from service.http.openai_ids import OpenAiIds
from service.http.problems import invalid_field
from service.openai.jobs.job_objects import accuracy_is_of_tokens
from service.openai.list_envelope import ListOf, list_of, unix
from service.tasks.lifecycle.event_log import EventKind
from service.tasks.models import Task, TaskEvent
from service.tenants.api_keys import Principal
from service.tenants.tenant_scope import scoped

_PREFIX = "ftevent-"
_WORDS = {
    "validating": "The job was created; its files are validated",
    "queued": "The job waits for its turn",
    "running": "The job runs",
    "paused": "The job is paused",
    "succeeded": "The job has succeeded",
    "failed": "The job has failed",
    "cancelled": "The job was cancelled",
}


class EventObject(BaseModel):
    id: str
    object: Literal["fine_tuning.job.event"] = "fine_tuning.job.event"
    created_at: int
    level: Literal["info", "warn", "error"]
    message: str
    type: Literal["message", "metrics"]
    data: dict[str, Any]


def events_page(
    session: Session, principal: Principal, task: Task, after: str | None, limit: int, ids: OpenAiIds
) -> ListOf[EventObject]:
    """A page of events, newest first; `after` is an event's id. Raises Invalid if it is no event of this task."""
    events: Select[TaskEvent] = scoped(select(TaskEvent).where(TaskEvent.task_id == task.id), TaskEvent, principal)
    if after is not None:
        events = events.where(TaskEvent.number < _number(after, task.id))
    found = list(session.scalars(events.order_by(TaskEvent.number.desc()).limit(limit + 1)))
    return list_of([_object(event, accuracy_is_of_tokens(task), ids) for event in found[:limit]], len(found) > limit)


def _number(id: str, task_id: str) -> int:
    own, _, number = id.removeprefix(_PREFIX).rpartition("-")
    if own != task_id or not (number.isascii() and number.isdigit() and len(number) <= 18):
        raise invalid_field("after", "not_found", f"{id!r} is no event of this job")
    return int(number)


def _object(event: TaskEvent, of_tokens: bool, ids: OpenAiIds) -> EventObject:
    level, message = _said(EventKind(event.kind), event.data)
    return EventObject(
        id=ids.of(f"{_PREFIX}{event.task_id}-{event.number}"),
        created_at=unix(event.created_at),
        level=level,
        message=ids.in_text(message),
        type="metrics" if event.kind == EventKind.CURVES else "message",
        data=_metrics(event.data, of_tokens) | event.data if event.kind == EventKind.CURVES else event.data,
    )


def _metrics(data: dict[str, Any], of_tokens: bool) -> dict[str, Any]:
    """The newest points under OpenAI's names, of the first configuration that the event tells of."""
    curves = [curve for curve in data["curves"] if curve["job"] == data["curves"][0]["job"]]
    last = {curve["series"]: curve["last"] for curve in curves}
    step = max(curve["to_step"] for curve in curves)
    accuracies = {ours: last.get(ours) for ours in ("train_accuracy", "val_accuracy")} if of_tokens else {}
    return {
        "step": step,
        "train_loss": last.get("train_loss"),
        "train_mean_token_accuracy": accuracies.get("train_accuracy"),
        "valid_loss": last.get("val_loss"),
        "valid_mean_token_accuracy": accuracies.get("val_accuracy"),
    }


def _said(kind: EventKind, data: dict[str, Any]) -> tuple[Literal["info", "warn", "error"], str]:
    match kind:
        case EventKind.STATUS:
            more = data.get("error") or data.get("reason")
            return "error" if data["status"] == "failed" else "info", _WORDS[data["status"]] + (f": {more}" if more else "")
        case EventKind.ACTIVATIONS:
            return "info", data["reason"][:1].upper() + data["reason"][1:]
        case EventKind.BASE:
            overlap = overlap_told(data)
            said = f"The base model alone has a validation loss of {_loss(data['val_loss'])}{overlap}"
            return "warn" if overlap else "info", said
        case EventKind.JOB:
            return _configuration(data)
        case EventKind.CURVES:
            return "info", "; ".join(_curve(curve) for curve in data["curves"][:8])
        case EventKind.REWIND:
            step = max(0, data["step"])
            return "warn", f"Configuration {data['job']} goes on from step {step}; what came after is trained again"
        case EventKind.ADAPTER:
            return "info", f"Configuration {data['job']} has an adapter of step {data['step']}: {_loss(data['val_loss'])}"


def _configuration(data: dict[str, Any]) -> tuple[Literal["info", "warn"], str]:
    if "milestone" in data:
        said = ", ".join(f"{name} {score:.4f}" for name, score in sorted(data["scores"].items())) or data.get(
            "evaluation_error"
        )
        return "info", f"Configuration {data['job']} wrote texts at step {data['evaluated_step']}: {said}"
    what = f"Configuration {data['job']} is {data['status']} at step {data['step']}"
    more = data.get("error") or data.get("exit_reason")
    return "warn" if data.get("error") else "info", what + (f": {more}" if more else "")


def _curve(curve: dict[str, Any]) -> str:
    return f"configuration {curve['job']}, step {curve['to_step']}: {curve['series']} {_loss(curve['last'])}"


def _loss(value: float | None) -> str:
    return "that is not finite" if value is None else f"{value:.4f}"
