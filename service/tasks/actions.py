"""What tenants do with tasks: create, list, cancel, pause, resume, archive, delete. The API's routes call it. Knows no HTTP."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from sqlalchemy import Select, literal_column, select
from sqlalchemy.orm import Session
from structlog.contextvars import get_contextvars

from contract.compatibility.version import VERSION
from contract.states import TASK_TERMINAL, RequeueReason, TaskStatus
from contract.task_spec import TaskSpec
from service.audit.audit_trail import note_created
from service.database.engine import ID_CHARACTERS, after_commit, clock
from service.dependencies import Dependencies
from service.graders import waiting_texts
from service.graders.endpoint_graders import EndpointGraders
from service.http.problems import Conflict, Problem
from service.messaging.plan_requests import request_plan
from service.messaging.queue import Queue, QueueJob
from service.messaging.wakeups import NodeWakeups
from service.mirrors import task_mirrors
from service.tasks.lifecycle import transitions
from service.tasks.lifecycle.change_notices import bump_version_and_notify
from service.tasks.lifecycle.placements import ask_to_leave, end_placements, live_placement, live_placements
from service.tasks.models import Task
from service.tasks.submission.spec_checks import ResolvedRefs, SpecChecker, base_changed, columns_of
from service.tasks.submission.task_insertion import NewJobs, insert_tasks, new_task
from service.tenants.api_keys import Principal
from service.tenants.tenant_scope import find, missing, scoped
from service.tracing.request_trace import take_traceparent
from service.usage.quotas import TaskQuota

_IN_IDS = frozenset("task_" + ID_CHARACTERS)


class TaskOpen(Conflict):
    """Raised where the task has to have ended first. `task_status` is its current status."""

    code, title = "task_open", "The task has not ended"


class TaskEnded(Conflict):
    """Raised where the task has already ended; an end state is final. `task_status` is that state."""

    code, title = "task_ended", "The task has ended"


@dataclass(frozen=True)
class NewTaskRequest:
    """One task to create, the id and the trace of the request that asks for it, and the batch that it is a part of."""

    spec: TaskSpec
    request_id: str | None
    traceparent: str | None = None
    batch_id: str | None = None


def create_all(
    session: Session, queue: Queue, graders: EndpointGraders, principal: Principal, requests: Sequence[NewTaskRequest]
) -> list[Task | Problem]:
    """Create each task with all its jobs, or refuse it on its own: then SpecRefused or QuotaExceeded is in its place.
    Wakes a validator after the commit. The caller writes the audit entries.

    A returned Task is detached from the session: it shows what was stored; load it again to change it.
    """
    quota, checker = TaskQuota(session, principal, len(requests)), SpecChecker(session, principal, graders)
    made: list[Task | Problem] = []
    for request in requests:
        try:
            quota.check()
            made.append(_task_of(principal, request, checker.check(request.spec)))
        except Problem as refused:
            made.append(refused)
        else:
            quota.count_one()
    new = [(task, NewJobs.of(request.spec)) for task, request in zip(made, requests, strict=True) if isinstance(task, Task)]
    if new:
        insert_tasks(session, new)
        made = [base_changed() if isinstance(task, Task) and task.created_at is None else task for task in made]
        for task, request in zip(made, requests, strict=True):
            if isinstance(task, Task):
                graders.store(session, task.tenant_id, task.id, request.spec)
                task_mirrors.store(session, principal, task.id, request.spec)
        after_commit(session, lambda: queue.wake(QueueJob.VALIDATE))
    return made


def _task_of(principal: Principal, wanted: NewTaskRequest, refs: ResolvedRefs) -> Task:
    spec = wanted.spec
    return new_task(
        tenant_id=principal.tenant_id,
        name=spec.name,
        labels=dict(spec.labels),
        made_by=VERSION,
        **columns_of(spec, refs),
        request_id=wanted.request_id,
        traceparent=wanted.traceparent,
        batch_id=wanted.batch_id,
    )


def create(session: Session, queue: Queue, graders: EndpointGraders, principal: Principal, spec: TaskSpec) -> Task:
    """`create_all` of one task, with its audit entry, for the dashboard and the OpenAI routes. (POST /v1/tasks comes to
    `create_all` through submission/coalesced_submission.py.) Raises SpecRefused, QuotaExceeded."""
    request = NewTaskRequest(spec, get_contextvars().get("request_id"), take_traceparent())
    (made,) = create_all(session, queue, graders, principal, [request])
    if isinstance(made, Problem):
        raise made
    note_created(session, made.id)
    return made


def select_tasks(
    principal: Principal,
    statuses: Iterable[TaskStatus] = (),
    labels: Mapping[str, str] = MappingProxyType({}),
    archived: bool | None = None,
    base_model: str | None = None,
    text: str | None = None,
) -> Select[Task]:
    """Query of the caller's tasks with any of these statuses (none: all), all these labels, this base model, and this text in
    their name or id; `archived` None: both kinds."""
    wanted = list(statuses)
    tasks = scoped(select(Task).where(Task.deleted_at.is_(None)), Task, principal)
    if archived is not None:
        tasks = tasks.where(Task.archived_at.is_not(None) if archived else Task.archived_at.is_(None))
    if labels:
        tasks = tasks.where(Task.labels.contains(dict(labels)), Task.labels != literal_column("'{}'::jsonb"))  # of the index
    if base_model is not None:
        tasks = tasks.where(Task.base_model == base_model)
    if text:
        named = Task.name.icontains(text, autoescape=True)
        in_id = text.lower()
        if _IN_IDS.issuperset(in_id):  # else one comparison for each of the tenant's tasks is spared
            named |= Task.id.contains(in_id, autoescape=True)
        tasks = tasks.where(named)
    return tasks.where(Task.status.in_(wanted)) if wanted else tasks


def cancel(
    session: Session, queue: Queue, wakeups: NodeWakeups, principal: Principal, task_id: str, noun: str = "task"
) -> Task:
    """End the task at once; committed adapters stay. Idempotent for cancelled tasks. noun: what refusals call the task. Raises
    NotFound, TaskEnded."""
    task = find(session, Task, task_id, principal, noun, lock=True)
    if task.status == TaskStatus.CANCELLED:
        return task
    if task.status in TASK_TERMINAL:
        raise TaskEnded(f"The {noun} {_already(task)}; there is nothing left to cancel.", task_status=task.status)
    _cancel(session, queue, wakeups, [task])
    return task


def cancel_all(session: Session, queue: Queue, wakeups: NodeWakeups, principal: Principal, ids: Collection[str]) -> list[Task]:
    """End those of these tasks at once that have not ended, and return them. Raises NotFound."""
    unended = [task for task in _locked(session, principal, ids) if task.status not in TASK_TERMINAL]
    _cancel(session, queue, wakeups, unended)
    return unended


def _locked(session: Session, principal: Principal, ids: Collection[str]) -> Sequence[Task]:
    """The caller's tasks with these ids, locked in the order of their ids. Raises NotFound."""
    own = scoped(select(Task).where(Task.id.in_(ids), Task.deleted_at.is_(None)), Task, principal).order_by(Task.id)
    found = session.scalars(own.with_for_update().execution_options(populate_existing=True)).all()
    for id in sorted(set(ids) - {task.id for task in found}):
        raise missing("task", id)
    return found


def _cancel(session: Session, queue: Queue, wakeups: NodeWakeups, tasks: Sequence[Task]) -> None:
    """Cancel open tasks, all of whose locks the caller holds."""
    if not tasks:
        return
    now = clock(session)
    for task in tasks:
        transitions.enter(task, TaskStatus.CANCELLED, now)
        transitions.cancel_jobs(session, task.id, now)
    end_placements(session, wakeups, live_placements(session, [task.id for task in tasks]), "cancelled")
    bump_version_and_notify(session, *tasks)
    request_plan(session, queue, "task_cancelled")


def pause(session: Session, dependencies: Dependencies, principal: Principal, task_id: str, noun: str = "task") -> Task:
    """Take the task out of the queue, or off its node once its jobs are saved (`desired_status` is `paused` until then).

    Pausing a paused task changes nothing. noun: as of `cancel`. Raises NotFound, TaskEnded.
    """
    task = find(session, Task, task_id, principal, noun, lock=True)
    if task.status in TASK_TERMINAL:
        raise TaskEnded(f"The {noun} {_already(task)}; there is nothing left to pause.", task_status=task.status)
    if TaskStatus.PAUSED in (task.status, task.desired_status):
        return task
    placement = live_placement(session, task.id)
    if placement is not None:
        ask_to_leave(session, dependencies, task, placement, RequeueReason.PAUSED, "its owner paused it", TaskStatus.PAUSED)
        return task
    if task.status == TaskStatus.QUEUED:
        transitions.enter(task, TaskStatus.PAUSED, clock(session))
        request_plan(session, dependencies.queue, "task_paused")
    else:  # a validator still checks its files
        task.desired_status = TaskStatus.PAUSED
    bump_version_and_notify(session, task)
    return task


def resume(session: Session, dependencies: Dependencies, principal: Principal, task_id: str, noun: str = "task") -> Task:
    """Put a paused task back into the queue, or withdraw a pause that is still pending.

    Resuming a task that is not paused changes nothing. noun: as of `cancel`. Raises NotFound, TaskEnded.
    """
    task = find(session, Task, task_id, principal, noun, lock=True)
    if task.status in TASK_TERMINAL:
        raise TaskEnded(f"The {noun} {_already(task)}; there is nothing left to resume.", task_status=task.status)
    if task.status == TaskStatus.PAUSED:
        transitions.enter(task, TaskStatus.QUEUED, clock(session))
        request_plan(session, dependencies.queue, "task_resumed")
    elif task.desired_status == TaskStatus.PAUSED:
        task.desired_status = TaskStatus.QUEUED if task.status == TaskStatus.RUNNING else None
    else:
        return task
    bump_version_and_notify(session, task)
    return task


def _already(task: Task) -> str:
    return "is already cancelled" if task.status == TaskStatus.CANCELLED else f"has already {task.status}"


def archive(session: Session, principal: Principal, task_id: str, archived: bool) -> Task:
    """Hide an ended task from lists, or list it again. Idempotent. Raises NotFound, TaskOpen."""
    task = _find_ended(session, principal, task_id, "archived")
    if archived != (task.archived_at is not None):
        task.archived_at = clock(session) if archived else None
        bump_version_and_notify(session, task)
    return task


def delete(session: Session, principal: Principal, task_id: str) -> None:
    """Soft-delete an ended task with all that it holds; the garbage collector removes it later. Texts that wait for an
    endpoint's scores are sent no more, and the task is mirrored no further. Raises NotFound, TaskOpen."""
    task = _find_ended(session, principal, task_id, "deleted")
    task.deleted_at = clock(session)
    waiting_texts.forget(session, task.id)
    task_mirrors.forget(session, task.id)
    bump_version_and_notify(session, task)


def _find_ended(session: Session, principal: Principal, task_id: str, done: str) -> Task:
    task = find(session, Task, task_id, principal, "task", lock=True)
    if task.status not in TASK_TERMINAL:
        raise TaskOpen(
            f"The task is {task.status}; cancel it or wait for its end before it is {done}.", task_status=task.status
        )
    return task
