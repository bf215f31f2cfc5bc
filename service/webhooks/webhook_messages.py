"""Webhook messages: adds one for each of the tenant's webhooks that wants the event type, in the transaction of the change.

One body serves both formats: OpenAI's clients read `data.id`, ours read all of `data`. Knows no HTTP and no signatures.
"""

import json
import logging
from datetime import datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from contract.compatibility.lenient_documents import read_leniently, why_unreadable
from contract.job_config import JobConfig
from contract.states import TaskStatus
from contract.wording.config_labels import winner_label
from service.database.engine import clock, new_id
from service.tasks.models import Job, Task
from service.webhooks.models import Delivery, Webhook

log = logging.getLogger(__name__)


class EventType(StrEnum):
    TASK_RUNNING = "task.running"
    TASK_PAUSED = "task.paused"
    TASK_SUCCEEDED = "task.succeeded"
    TASK_FAILED = "task.failed"
    TASK_CANCELLED = "task.cancelled"
    JOB_SUCCEEDED = "fine_tuning.job.succeeded"  # OpenAI's names for these events
    JOB_FAILED = "fine_tuning.job.failed"
    JOB_CANCELLED = "fine_tuning.job.cancelled"
    TEST = "webhook.test"  # sent on request, whatever event types the webhook wants


WANTED = tuple(one for one in EventType if one is not EventType.TEST)


def types_of(status: str) -> set[str]:
    """The event types of a task's status; none for a status that no webhook is told of."""
    return {name for name in (f"task.{status}", f"fine_tuning.job.{status}") if name in WANTED}


def announce(session: Session, task: Task) -> None:
    """Add messages about the task's status to the tenant's webhooks."""
    types = types_of(task.status)
    if not types:
        return
    wants = Webhook.events.overlap(sorted(types))
    webhooks = select(Webhook).where(Webhook.tenant_id == task.tenant_id, Webhook.disabled.is_(None), wants)
    # locked against deletion, as the messages' foreign keys lock them: one that goes meanwhile would undo the whole transaction
    held = webhooks.order_by(Webhook.id).with_for_update(read=True, key_share=True)
    if not (wanting := session.scalars(held).all()):
        return
    now, about = clock(session), _about(session, task)
    for webhook in wanting:
        for type in sorted(types & set(webhook.events)):
            enqueue_message(session, webhook, EventType(type), about, now)


def enqueue_message(session: Session, webhook: Webhook, type: EventType, data: dict[str, Any], now: datetime) -> Delivery:
    """Add a message that is due at once."""
    id = new_id("msg")
    said = {"id": id, "object": "event", "type": type, "created_at": int(now.timestamp()), "timestamp": now.isoformat()}
    payload = json.dumps(said | {"data": data}, separators=(",", ":"))
    made = Delivery(
        id=id, tenant_id=webhook.tenant_id, webhook_id=webhook.id, type=type, payload=payload, next_at=now, created_at=now
    )
    session.add(made)
    return made


def _about(session: Session, task: Task) -> dict[str, Any]:
    data: dict[str, Any] = {"id": task.id, "task_id": task.id, "name": task.name, "status": task.status, "labels": task.labels}
    if task.status == TaskStatus.SUCCEEDED:
        data["winner_job_id"] = task.winner_job_id
        data["winner"] = _winner(session, task)
    if task.error is not None:
        data["error"] = task.error
    return data


def _winner(session: Session, task: Task) -> dict[str, Any] | None:
    """The winner's index, hyperparameters, what tells it apart in words, and loss."""
    if task.winner_job_id is None:
        return None
    columns = select(Job.id, Job.index, Job.config, Job.best_val_loss).where(Job.task_id == task.id)
    jobs = {row.id: row for row in session.execute(columns.order_by(Job.index))}
    row = jobs[task.winner_job_id]
    told = {"index": row.index, "config": row.config, "val_loss": row.best_val_loss}
    try:
        configs = {id: read_leniently(JobConfig, job.config) for id, job in jobs.items()}
    except ValueError as unreadable:  # another version's: its message may not hold up the task
        log.warning("task %s: this version cannot read its configurations: %s", task.id, why_unreadable(unreadable))
        return told | {"label": None}
    return told | {"label": winner_label(configs[row.id], configs.values())}
