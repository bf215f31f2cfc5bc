"""What happened to a task, as sentences: its events, and what was planned for it. Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from contract.states import ExitReason
from contract.wording.exit_sentences import exit_sentence
from contract.wording.row_words import overlap_told
from contract.wording.step_words import goes_on_from
from service.database.checked_json import Unread
from service.tasks.lifecycle.event_log import EventKind
from service.tasks.models import TaskEvent
from service.tasks.plan_status.plan_history import PlanChangeResource
from service.web.views.formats import loss

TOLD = (EventKind.STATUS, EventKind.BASE, EventKind.JOB, EventKind.REWIND, EventKind.ACTIVATIONS)
_MOST = 60


@dataclass(frozen=True)
class Happening:
    at: datetime
    mark: str  # the icon's state
    words: str


def happenings(events: Sequence[TaskEvent], plans: Sequence[PlanChangeResource]) -> list[Happening]:
    """The newest first. Jobs are told of where they end."""
    told = [*_events(events), *_plans(plans)]
    return sorted(told, key=lambda one: one.at, reverse=True)[:_MOST]


def _events(events: Sequence[TaskEvent]) -> Iterator[Happening]:
    for event in events:
        said = _words(event.kind, event.data) if not isinstance(event.data, Unread) else None
        if said is not None:
            yield Happening(event.created_at, *said)


def _words(kind: str, data: dict[str, Any]) -> tuple[str, str] | None:
    job = f"job {data.get('job')}"
    match kind:
        case EventKind.STATUS:
            why = f": {data['error']}" if "error" in data else f" ({data['reason']})" if "reason" in data else ""
            chosen = data["selection"].get("verdict") if isinstance(data.get("selection"), dict) else None
            return data["status"], f"{data['status']}{why}" + (f": {chosen}" if chosen else "")
        case EventKind.BASE:
            scores = "".join(f", {name} {score:.3f}" for name, score in data.get("scores", {}).items())
            more = scores + overlap_told(data)
            return "completed", f"the base alone has a validation loss of {loss(data.get('val_loss'))}{more}"
        case EventKind.REWIND:
            return "paused", f"{job} {goes_on_from(data.get('step', -1))}"
        case EventKind.ACTIVATIONS:
            return "warmup", str(data.get("reason", ""))
        case EventKind.JOB if "milestone" in data:
            scores = ", ".join(f"{name} {score:.3f}" for name, score in sorted(data["scores"].items()))
            return "running", f"{job} wrote texts at step {data['evaluated_step']}: {scores or data.get('evaluation_error')}"
        case EventKind.JOB if data.get("status") == "exited":
            return "exited", f"{job} stopped early at step {data.get('step')}: {_exit(data)}"
        case EventKind.JOB if data.get("status") == "completed":
            return "completed", f"{job} completed, best loss {loss(data.get('best_val_loss'))}"
        case EventKind.JOB if data.get("status") == "failed":
            return "failed", f"{job} failed: {data.get('error', '')}"
    return None


def _exit(data: dict[str, Any]) -> str:
    """The reason with its numbers; of an event that an earlier version stored, its name alone."""
    reason, evidence = str(data.get("exit_reason")), data.get("exit_evidence")
    return f"{reason}, {exit_sentence(ExitReason(reason), evidence)}" if evidence else reason


def _plans(plans: Sequence[PlanChangeResource]) -> Iterator[Happening]:
    for plan in plans:
        if plan.problems:
            yield Happening(plan.created_at, "queued", "; ".join(one.message for one in plan.problems))
            continue
        match plan.kind:
            case "waits":
                yield Happening(plan.created_at, "queued", str(plan.said.get("sentence") or "waits"))
            case "placed":
                more = f": {plan.said['sentence']}" if plan.said.get("sentence") else ""
                yield Happening(plan.created_at, "running", f"placed on {plan.said.get('node')}{more}")
            case "left":
                yield Happening(
                    plan.created_at, "paused", f"left its node: {plan.said.get('detail') or plan.said.get('reason')}"
                )
