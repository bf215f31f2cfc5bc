"""Checks a new task's stored files (sha256, number of rows), then queues the task or fails it.

Holds no row lock while it reads; the result counts only if the task is still `validating` afterwards.
"""

import hashlib
import logging
import threading
import time
from collections.abc import Container, Iterator, Sequence
from datetime import datetime
from itertools import zip_longest

from sqlalchemy import select, text
from sqlalchemy.orm import Session

from contract.states import TaskStatus
from service.database.engine import Database, clock
from service.files.models import File
from service.messaging.plan_requests import ARRIVED, request_plan
from service.messaging.queue import Queue
from service.storage.object_store import BLOCK, ObjectMissing, Storage
from service.tasks.lifecycle import transitions
from service.tasks.lifecycle.change_notices import bump_version_and_notify
from service.tasks.lifecycle.conclusion import conclude, fail_unfinished
from service.tasks.lifecycle.task_trace import files_checked
from service.tasks.models import Task

log = logging.getLogger(__name__)

_GROUP_SIZE = 100  # tasks per transaction and notice
_OUTDATED_SECONDS = 1.0  # after which tasks that have come since are looked for
_Group = tuple[tuple[str, ...], list[str]]  # files, and tasks that name them
_TRY_LOCK = text(
    "SELECT id FROM unnest(CAST(:ids AS varchar[])) AS id WHERE pg_try_advisory_xact_lock(hashtextextended(id, 0))"
)


class _Stopped(Exception):
    """This process ends; the tasks are left to another validator."""


def validate_due(db: Database, storage: Storage, queue: Queue, stopping: threading.Event | None = None) -> int:
    """Validate the tasks in `validating` that no other validator has claimed, until all that were due at first have been tried
    or `stopping` is set. Returns how many were validated.

    Tasks with the same files are validated together: a search submitted as many tasks reads its files once. Tenants take turns,
    those whose tasks come meanwhile too: who waits, waits for one group of each other's. A task that is skipped, since its
    storage cannot be read or another validator has it, is tried again by the next call.
    """
    stopping, done = stopping or threading.Event(), 0
    tried, served = set[str](), set[str]()
    due = _due(db, tried)
    at_first = _tasks(due)
    try:
        while not at_first.isdisjoint(_tasks(due)) and not stopping.is_set():
            outdated = time.monotonic() + _OUTDATED_SECONDS
            newcomers_first = sorted(due, key=served.__contains__)
            for turn in zip_longest(*(due[tenant_id] for tenant_id in newcomers_first)):
                for files, ids in filter(None, turn):
                    done += _validate(db, storage, queue, files, ids, stopping)
                    tried.update(ids)
                if time.monotonic() >= outdated:
                    break
            served.update(due)
            due = _due(db, tried)
    except _Stopped:
        log.info("validation stops; what is left is another validator's")
    return done


def _tasks(due: dict[str, list[_Group]]) -> set[str]:
    return {task_id for groups in due.values() for _, ids in groups for task_id in ids}


def _due(db: Database, but: Container[str]) -> dict[str, list[_Group]]:
    """Each tenant's tasks in `validating` but those, in groups of equal files, the oldest first."""
    with db.begin() as session:
        rows = select(Task.id, Task.tenant_id, Task.train_file_id, Task.validation_file_id, Task.prompts_file_id).where(
            Task.status == TaskStatus.VALIDATING
        )
        found: dict[str, dict[tuple[str, ...], list[str]]] = {}
        for task_id, tenant_id, *named in session.execute(rows.order_by(Task.created_at, Task.id)):
            if task_id not in but:
                files = tuple(file for file in named if file is not None)
                found.setdefault(tenant_id, {}).setdefault(files, []).append(task_id)
    return {tenant_id: list(_in_groups(by_files)) for tenant_id, by_files in found.items()}


def _in_groups(by_files: dict[tuple[str, ...], list[str]]) -> Iterator[_Group]:
    for files, ids in by_files.items():
        yield from ((files, ids[at : at + _GROUP_SIZE]) for at in range(0, len(ids), _GROUP_SIZE))


def _validate(
    db: Database, storage: Storage, queue: Queue, file_ids: Sequence[str], task_ids: list[str], stopping: threading.Event
) -> int:
    """Validates tasks that train on the same files; returns how many of them no other validator had claimed."""
    with db.begin() as lock_session:
        # advisory locks alone: a tenant can cancel a task, and a migration change any table, while a large file is read
        ours = list(lock_session.scalars(_TRY_LOCK, {"ids": task_ids}))
        with db.begin() as session:  # another validator may have settled them before they were ours
            validating = select(Task.id).where(Task.id.in_(ours), Task.status == TaskStatus.VALIDATING)
            ours = list(session.scalars(validating)) if ours else []
            files = list(session.scalars(select(File).where(File.id.in_(file_ids)).order_by(File.id))) if ours else []
        if not ours:
            return 0
        began = time.time()
        try:
            errors = [error for file in files if (error := _damage(storage, file, stopping)) is not None]
        except OSError as error:
            log.warning("tasks %s are validated later, storage cannot be read: %s", ", ".join(ours), error)
            return 0
        with db.begin() as session:
            return _settle(session, queue, ours, errors, began)


def _damage(storage: Storage, file: File, stopping: threading.Event) -> str | None:
    """What is wrong with the stored file, as a message for the tenant; None if nothing is. Raises _Stopped."""
    digest, rows, last = hashlib.sha256(), 0, b""
    try:
        with storage.open(file.sha256) as source:
            while block := source.read(BLOCK):
                if stopping.is_set():
                    raise _Stopped
                digest.update(block)
                rows += block.count(b"\n")
                last = block
    except ObjectMissing:
        return f"file {file.id} ({file.name}) is missing from storage; upload it again"
    rows += bool(last) and not last.endswith(b"\n")
    if digest.hexdigest() != file.sha256 or rows != file.rows:
        return f"file {file.id} ({file.name}) is damaged in storage: its sha256 is not {file.sha256} any more; upload it again"
    return None


def _settle(session: Session, queue: Queue, task_ids: list[str], errors: list[str], began: float) -> int:
    """Queue the tasks (those paused meanwhile become paused), or with `errors` fail them. Skips cancelled ones. Returns the
    number changed. began: when their files began to be read, in epoch seconds."""
    queued = _queue(session, task_ids, began) if not errors else set()
    settled = len(queued) + _settle_apart(session, set(task_ids) - queued, errors)
    if settled and not errors:
        request_plan(session, queue, ARRIVED)
    return settled


def _settle_apart(session: Session, task_ids: set[str], errors: list[str]) -> int:
    """Settles tasks one by one: with errors all, else the few that were paused meanwhile. Returns how many were validating."""
    if not task_ids:
        return 0
    validating = select(Task).where(Task.id.in_(task_ids), Task.status == TaskStatus.VALIDATING).order_by(Task.id)
    tasks = list(session.scalars(validating.with_for_update()))
    now = clock(session)
    with session.no_autoflush:  # flush all rows at once
        for task in tasks:
            if errors:
                _fail(session, task, "; ".join(errors))
            else:
                _queue_or_pause(task, now)
    bump_version_and_notify(session, *tasks)
    return len(tasks)


def _queue(session: Session, task_ids: list[str], began: float) -> set[str]:
    """Queue the tasks that nobody has cancelled or paused meanwhile. Returns their ids."""
    queued = transitions.QUEUE_VALIDATED.run(session, task_ids)
    files_checked(session, ((task_id, by.traceparent) for task_id, by in queued.items()), began, time.time())
    for task_id, by in queued.items():
        log.info("task %s is queued", task_id, extra={"request_id": by.request_id})
    return set(queued)


def _fail(session: Session, task: Task, error: str) -> None:
    log.error("task %s cannot run: %s", task.id, error, extra={"request_id": task.request_id})
    fail_unfinished(task, error)
    conclude(session, task, error)


def _queue_or_pause(task: Task, now: datetime) -> None:
    desired = task.desired_status
    transitions.enter(task, TaskStatus.QUEUED, now)
    if desired is not None:  # paused before it was queued
        transitions.enter(task, TaskStatus(desired), now)
    log.info("task %s is %s", task.id, task.status, extra={"request_id": task.request_id})
