"""Garbage collection: deletes objects that no row refers to, what tenants deleted long ago, and history past its retention."""

import logging
from datetime import timedelta

from sqlalchemy import delete, or_, select, update
from sqlalchemy.orm import Session

from contract.states import TASK_TERMINAL
from service.adapters.models import Adapter
from service.database.engine import Database, clock
from service.files.models import File
from service.http.idempotency_store import forget_old_answers
from service.scheduler.models import Plan, PlanChange
from service.storage.object_store import Storage
from service.tasks.models import CurveSummary, Job, PointChunk, Task, TaskEvent

log = logging.getLogger(__name__)

KEPT_SECONDS = 24 * 3600.0  # an object may lie this long between its upload and the report that commits it
_PLANS_KEPT = timedelta(days=7)
RETENTION = timedelta(days=30)


def sweep(db: Database, storage: Storage, retention: timedelta = RETENTION) -> int:
    """Delete what is left over; how many objects. Safe beside uploads: one that is granted or put again is young again."""
    listed = storage.keys()  # read before what refers to them
    old = {stored.sha256 for stored in listed if stored.age > KEPT_SECONDS}
    with db.begin() as session:
        expired = update(File).where(File.deleted_at.is_(None), File.expires_at <= clock(session))
        session.execute(expired.values(deleted_at=File.expires_at))
        _empty_deleted_tasks(session, retention)
        orphans = old - _referenced(session)
        session.execute(delete(Plan).where(Plan.created_at < clock(session) - _PLANS_KEPT))
        forget_old_answers(session)
    removed = sum(storage.delete(sha256, older_than=KEPT_SECONDS) for sha256 in sorted(orphans))
    removed += storage.sweep_incoming()
    if removed:
        log.info("removed %d objects that nothing referred to", removed)
    return removed


def _empty_deleted_tasks(session: Session, retention: timedelta) -> None:
    """Remove what deleted tasks hold but their own rows and their jobs', which say what was used."""
    over = select(Task.id).where(Task.deleted_at < clock(session) - retention)
    jobs = select(Job.id).where(Job.task_id.in_(over))
    for of_job in (PointChunk.job_id, CurveSummary.job_id):
        session.execute(delete(of_job.class_).where(of_job.in_(jobs)))
    for of_task in (TaskEvent.task_id, PlanChange.task_id, Adapter.task_id):
        session.execute(delete(of_task.class_).where(of_task.in_(over)))


def _referenced(session: Session) -> set[str]:
    """Every sha256 that a file, a checkpoint or an adapter refers to. A deleted file counts while a task still needs it."""
    needed = select(Task.id).where(
        Task.status.not_in(list(TASK_TERMINAL)), or_(Task.train_file_id == File.id, Task.validation_file_id == File.id)
    )
    files = select(File.sha256).where(or_(File.deleted_at.is_(None), needed.exists()))
    checkpoints = select(Job.checkpoint["sha256"].astext).where(Job.checkpoint.is_not(None))
    adapters = session.scalars(
        select(Adapter.manifest["files"]).where(Adapter.deleted_at.is_(None)).execution_options(yield_per=1000)
    )
    kept = {file["sha256"] for manifest in adapters for file in manifest}
    return kept | set(session.scalars(files)) | set(session.scalars(checkpoints))
