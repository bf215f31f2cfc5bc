"""A task's event log: events numbered from 1 without gaps. Knows no streams.

Callers hold the task's row lock, so event numbers ascend in commit order.
"""

import math
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from contract.states import JOB_TERMINAL, TASK_TERMINAL, TaskStatus
from service.tasks.lifecycle.task_trace import task_ended
from service.tasks.models import Job, Task, TaskEvent
from service.tenants.api_keys import Principal
from service.tenants.tenant_scope import scoped
from service.webhooks.webhook_messages import announce


class EventKind(StrEnum):
    STATUS = "status"  # {status, reason?, error?, winner_job_id?, selection?}: the task has a new status
    ACTIVATIONS = "activations"  # {recompute, reason}: how training passes store their activations from here on, and why
    # {val_loss, scores?, evaluation_error?}: the base model alone was evaluated, or its texts; where validation rows are also
    # trained on: {rows: {validation, overlap}}
    BASE = "base"
    # {job, job_id, status, step}: a job's status changed; and if it ended, {best_step, best_val_loss, averaged_steps?,
    # exit_reason?, exit_evidence?, error?}; or its texts were scored at a milestone: {milestone, evaluated_step, scores,
    # evaluation_error?}; or its configuration was proposed (tpe): {config}
    JOB = "job"
    CURVES = "curves"  # {curves: [{job, series, from_step, to_step, last}]}: these points are now readable
    REWIND = "rewind"  # {job, step, status}: points beyond this step no longer count (-1: none does)
    ADAPTER = "adapter"  # {job, adapter_id, step, averaged_steps?, val_loss, scores?, evaluation_error?}: it can be downloaded


# further fields of a status event: the task's column, and the only status that tells it (None: each)
STATUS_FIELDS: Mapping[str, tuple[str, TaskStatus | None]] = {
    "reason": ("requeue_reason", TaskStatus.QUEUED),
    "error": ("error", None),
    "winner_job_id": ("winner_job_id", None),
    "selection": ("selection", TaskStatus.SUCCEEDED),
}


def record(session: Session, task: Task, kind: EventKind, data: dict[str, Any]) -> None:
    """Append the task's next event, in the transaction of the change that it describes."""
    task.last_event += 1
    session.add(TaskEvent(task_id=task.id, number=task.last_event, tenant_id=task.tenant_id, kind=kind, data=data))


def record_status(session: Session, task: Task, detail: str | None = None) -> None:
    """Record the task's status if it differs from the last recorded one, and queue the tenant's webhooks. `detail`: a sentence
    about it."""
    if task.status == task.told_status:
        return
    data: dict[str, Any] = {"status": task.status}
    for name, (column, only) in STATUS_FIELDS.items():
        value = getattr(task, column) if only is None or task.status == only else None
        if value is not None:
            data[name] = value
    if detail is not None:
        data["detail"] = detail
    record(session, task, EventKind.STATUS, data)
    task.told_status = task.status
    announce(session, task)
    if task.status in TASK_TERMINAL:
        task_ended(session, task)


def newest(session: Session, principal: Principal, task_id: str, kinds: Sequence[EventKind], most: int) -> list[TaskEvent]:
    """The caller's task's newest events of these kinds, the newest first."""
    events = select(TaskEvent).where(TaskEvent.task_id == task_id, TaskEvent.kind.in_(kinds))
    return list(session.scalars(scoped(events, TaskEvent, principal).order_by(TaskEvent.number.desc()).limit(most)))


class EventBuffer:
    """Collects the events of one report, in order; consecutive points of several series become one `curves` event."""

    def __init__(self, session: Session, task: Task) -> None:
        self._session, self._task = session, task
        self._curves: dict[tuple[int, str], dict[str, Any]] = {}

    def points(self, job: int, series: str, steps: Sequence[int], values: Sequence[float]) -> None:
        told = self._curves.setdefault((job, series), {"job": job, "series": series, "from_step": steps[0]})
        told |= {"to_step": steps[-1], "last": values[-1] if math.isfinite(values[-1]) else None}

    def job(self, job: Job, more: Mapping[str, Any] | None = None) -> None:
        """Record the job's state. more: what else the event tells."""
        data: dict[str, Any] = {"job": job.index, "job_id": job.id, "status": job.status, "step": job.step}
        if job.status in JOB_TERMINAL:
            data |= {"best_step": job.best_step, "best_val_loss": job.best_val_loss}
            data |= {"exit_reason": job.exit_reason, "exit_evidence": job.exit_evidence or {}} if job.exit_reason else {}
            data |= {"error": job.error} if job.error else {}
        self.add(EventKind.JOB, data | (dict(more) if more is not None else {}))

    def add(self, kind: EventKind, data: dict[str, Any]) -> None:
        self.flush()
        record(self._session, self._task, kind, data)

    def flush(self) -> None:
        """Record the points that no later event has flushed."""
        if self._curves:
            record(self._session, self._task, EventKind.CURVES, {"curves": list(self._curves.values())})
            self._curves = {}
