"""The first look at a task's data: its files are read again where they are stored, then the task is queued or failed.

Nothing is locked while a file is read; what was found counts only if the task is still being validated afterwards.
"""

import hashlib
import logging

from sqlalchemy import func, or_, select, text
from sqlalchemy.orm import Session

from contract.states import TaskStatus, check_task
from service.db import Database
from service.files.models import File
from service.queue import Queue
from service.scheduler import waiting
from service.scheduler.requests import request_plan
from service.storage import BLOCK, ObjectMissing, Storage
from service.tasks.conclude import conclude, fail_unfinished
from service.tasks.models import Task
from service.tasks.watch import touch

log = logging.getLogger(__name__)


def validate_due(db: Database, storage: Storage, queue: Queue) -> int:
    """Validate every task that waits for it and that no other validator has in hand; how many were."""
    with db.begin() as session:
        due = list(session.scalars(select(Task.id).where(Task.status == TaskStatus.VALIDATING).order_by(Task.created_at)))
    return sum(_validate(db, storage, queue, task_id) for task_id in due)


def _validate(db: Database, storage: Storage, queue: Queue, task_id: str) -> bool:
    with db.begin() as turn:
        # the lock is on a number, not on the row: reading a large file must not keep the task from being cancelled
        if not turn.scalar(text("SELECT pg_try_advisory_xact_lock(hashtextextended(:id, 0))"), {"id": task_id}):
            return False
        named = or_(Task.train_file_id == File.id, Task.validation_file_id == File.id)
        files = list(turn.scalars(select(File).join(Task, named).where(Task.id == task_id).order_by(File.id)))
        try:
            errors = [error for file in files if (error := _damage(storage, file)) is not None]
        except OSError as error:
            log.warning("task %s is validated later, storage cannot be read: %s", task_id, error)
            return False
        with db.begin() as session:
            return _settle(session, queue, task_id, errors)


def _damage(storage: Storage, file: File) -> str | None:
    """What is wrong with the stored file, in words for the tenant."""
    digest, rows, last = hashlib.sha256(), 0, b""
    try:
        with storage.open(file.sha256) as source:
            while block := source.read(BLOCK):
                digest.update(block)
                rows += block.count(b"\n")
                last = block
    except ObjectMissing:
        return f"file {file.id} ({file.name}) is missing from storage; upload it again"
    rows += bool(last) and not last.endswith(b"\n")
    if digest.hexdigest() != file.sha256 or rows != file.rows:
        return f"file {file.id} ({file.name}) is damaged in storage: its sha256 is not {file.sha256} any more; upload it again"
    return None


def _settle(session: Session, queue: Queue, task_id: str, errors: list[str]) -> bool:
    task = session.scalar(select(Task).where(Task.id == task_id).with_for_update())
    if task is None or task.status != TaskStatus.VALIDATING:
        return False  # cancelled meanwhile
    of_request = {"request_id": task.request_id}
    if errors:
        error = "; ".join(errors)
        log.error("task %s cannot run: %s", task_id, error, extra=of_request)
        fail_unfinished(task, error)
        conclude(session, task, error)
    else:
        task.status = check_task(TaskStatus.VALIDATING, TaskStatus.QUEUED)
        task.queued_at = session.scalars(select(func.clock_timestamp())).one()
        if task.desired_status is not None:  # paused before it could be queued
            task.status, task.desired_status = check_task(TaskStatus.QUEUED, TaskStatus(task.desired_status)), None
            task.waiting = waiting.paused()
        request_plan(session, queue, "task_arrived")
        log.info("task %s is queued", task_id, extra=of_request)
    touch(session, task)
    return True
