"""Retention of history rows, deleted in bounded batches: no transaction grows with the backlog, and none waits for a lock.

Usage totals do not depend on these rows: usage/usage_ledger.py has stored them as counters before.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Self

from sqlalchemy import ColumnElement, CursorResult, and_, delete, func, inspect, or_, select, text, update
from sqlalchemy.orm import InstrumentedAttribute

from contract.states import TASK_TERMINAL
from service.adapters.models import Adapter
from service.audit.models import AuditEntry
from service.background.separate_steps import alone
from service.completions.models import CompletionRequest
from service.database.ended_rows import LONG_AGO
from service.database.engine import Base, Database, clock, id_at
from service.files.models import ChunkedUpload, File, FileImport
from service.fleet.models import Node
from service.fleet.node_health.node_removal import remove_away, unnamed
from service.graders.models import EndpointGrader, TextGrading
from service.hub_pushes.models import HubPush
from service.idempotency.idempotency_store import KEPT, StoredAnswer
from service.merges.models import FAILED, MergedModel
from service.metrics.models import EndedTotalsThrough
from service.mirrors.models import TaskMirror
from service.scheduler.models import Plan, PlanChange
from service.scheduler.state.usage_shares import HALVES
from service.settings import Settings
from service.tasks.models import CurveSummary, Job, MilestoneEvaluation, PointChunk, Task, TaskEvent, TextEvaluation
from service.usage.models import RolledUpThrough
from service.webhooks.models import Delivery

BATCH = 1000  # rows of a transaction
UPLOADS_KEPT = timedelta(days=1)  # after they expire; a repeated request is told of their end
COMPLETIONS_KEPT = timedelta(hours=1)  # longer than any lasts; limits count those of the last minutes
_TASKS = 50  # deleted tasks per batch


@dataclass(frozen=True)
class Retention:
    """`deleted`: rows of a deleted task, from its deletion, and points hidden by rewinds, from the task's end. `placements`:
    from their end, once their task has ended; also rows of removed nodes, from their removal. `nodes`: from their last
    heartbeat, on the list. The others: from creation. Answers under Idempotency-Keys last KEPT."""

    deleted: timedelta = timedelta(days=30)
    plan_history: timedelta = timedelta(days=90)
    plans: timedelta = timedelta(days=7)
    deliveries: timedelta = timedelta(days=30)
    placements: timedelta = timedelta(days=90)
    nodes: timedelta = timedelta(days=7)
    audit: timedelta = timedelta(days=365)

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """From the settings; placements stay for at least HALVES half-lives, since fair shares count them."""
        counted = timedelta(seconds=HALVES * settings.fair_share_half_life_seconds)
        return cls(
            deleted=timedelta(days=settings.retention_days),
            plan_history=timedelta(days=settings.plan_history_days),
            plans=timedelta(days=settings.plan_days),
            deliveries=timedelta(days=settings.delivery_days),
            placements=max(timedelta(days=settings.placement_days), counted),
            nodes=timedelta(days=settings.node_days),
            audit=timedelta(days=settings.audit_days),
        )


_TASK_ENDED = select(Task.id).where(Task.id == EndpointGrader.task_id, Task.ended_at.is_not(None)).exists()
_WAITED_FOR = select(TextGrading.id).where(TextGrading.grader_id == EndpointGrader.id).exists()
_KEPT_FILE = select(File.id).where(File.id == FileImport.id, File.deleted_at.is_(None)).exists()


def _over(before: datetime) -> ColumnElement[bool]:
    """Merged models that were deleted or expired before this, and merges that failed."""
    return or_(MergedModel.deleted_at < before, and_(MergedModel.status == FAILED, MergedModel.ended_at < before))


def forget(db: Database, keep: Retention) -> dict[str, int]:
    """Delete rows past their retention; returns how many of each table. One that fails is logged and tried again by the next
    sweep; the others continue."""
    with db.begin() as session:
        now = clock(session)
    asked = now - COMPLETIONS_KEPT
    steps: dict[str, Callable[[], int]] = {
        "plan_changes": lambda: _made_before(db, PlanChange, PlanChange.id, "change", now - keep.plan_history),
        "plans": lambda: _made_before(db, Plan, Plan.id, "plan", now - keep.plans),
        "webhook_deliveries": lambda: _made_before(db, Delivery, Delivery.id, "msg", now - keep.deliveries),
        "audit_entries": lambda: _made_before(db, AuditEntry, AuditEntry.id, "audit", now - keep.audit),
        "idempotency_keys": lambda: delete_in_batches(db, StoredAnswer, StoredAnswer.claimed_at < now - KEPT),
        "placements": lambda: _forget_placements(db, now - keep.placements),
        "nodes": lambda: remove_away(db, now - keep.nodes) + delete_in_batches(db, Node, *unnamed(now - keep.placements)),
        "merged_models": lambda: delete_in_batches(db, MergedModel, _over(now - keep.deleted)),
        "hub_pushes": lambda: delete_in_batches(db, HubPush, HubPush.ended_at < now - keep.deleted),
        "file_imports": lambda: delete_in_batches(db, FileImport, FileImport.ended_at < now - keep.deleted, ~_KEPT_FILE),
        "uploads": lambda: delete_in_batches(db, ChunkedUpload, ChunkedUpload.expires_at < now - UPLOADS_KEPT),
        "completion_requests": lambda: _made_before(db, CompletionRequest, CompletionRequest.id, "cmpl", asked),
        "endpoint_graders": lambda: delete_in_batches(db, EndpointGrader, _TASK_ENDED, ~_WAITED_FOR),
        "point_chunks": lambda: _forget_hidden(db, now - keep.deleted),
        "adapters": lambda: delete_in_batches(db, Adapter, Adapter.task_id.is_(None), Adapter.deleted_at < now - keep.deleted),
        "boundary_scores": lambda: _forget_scores(db),
        "tasks": lambda: _empty_deleted_tasks(db, now - keep.deleted),
    }
    removed = {}
    for table, step in steps.items():
        with alone(f"the removal of old {table}"):
            removed[table] = step()
    return removed


def forget_surplus_plans(db: Database, kept: int) -> int:
    """Delete all but the newest plans."""
    oldest = select(Plan.id).order_by(Plan.id.desc()).offset(kept).limit(1).scalar_subquery()
    return delete_in_batches(db, Plan, Plan.id <= oldest)


def delete_in_batches(db: Database, model: Any, *where: ColumnElement[bool]) -> int:
    """Delete these rows, one transaction per BATCH; returns how many. Skips rows that another transaction has locked."""
    keys, removed = inspect(model).primary_key, 0
    while True:
        old = select(*keys).where(*where).limit(BATCH).with_for_update(skip_locked=True, of=model.__table__).cte("old")
        statement = delete(model).where(*(key == old.c[key.name] for key in keys))
        with db.begin() as session:
            found = session.execute(statement.execution_options(synchronize_session=False))
            assert isinstance(found, CursorResult)
        removed += found.rowcount
        if found.rowcount < BATCH:
            return removed


def _made_before(db: Database, model: type[Base], id: InstrumentedAttribute[str], prefix: str, moment: datetime) -> int:
    """Delete by id: ids sort by creation time, so no other index is needed."""
    return delete_in_batches(db, model, id < id_at(prefix, moment))


_FORGET_PLACEMENTS = text(
    """WITH old AS MATERIALIZED (
        SELECT p.id FROM placements p JOIN tasks t ON t.id = p.task_id
        WHERE p.ended_at < :before AND t.status = ANY(:ended) LIMIT :batch FOR UPDATE OF p SKIP LOCKED
    ), gone AS (
        DELETE FROM placements p USING old WHERE p.id = old.id RETURNING p.*
    ), counted AS (
        INSERT INTO swept_placements AS kept (end_reason, placements, tokens, evaluation_tokens, steps, forwards, gpu_seconds)
        SELECT coalesce(end_reason, 'unknown'), count(*), sum(tokens), sum(evaluation_tokens), sum(steps), sum(forwards),
            sum(gpu_seconds * cardinality(device_indexes)) FROM gone GROUP BY 1
        ON CONFLICT (end_reason) DO UPDATE SET placements = kept.placements + excluded.placements,
            tokens = kept.tokens + excluded.tokens, evaluation_tokens = kept.evaluation_tokens + excluded.evaluation_tokens,
            steps = kept.steps + excluded.steps, forwards = kept.forwards + excluded.forwards,
            gpu_seconds = kept.gpu_seconds + excluded.gpu_seconds
    )
    SELECT count(*) FROM gone"""
)


def _forget_placements(db: Database, before: datetime) -> int:
    """Delete old placements of ended tasks, adding their totals to swept_placements; none that `ended_totals` or usage by day
    has yet to count. task_usage holds what is billed."""
    with db.begin() as session:
        counted = [session.scalar(select(kind.moment)) for kind in (EndedTotalsThrough, RolledUpThrough)]
    before = min(before, *(moment or LONG_AGO for moment in counted))
    values, removed = {"before": before, "ended": sorted(TASK_TERMINAL), "batch": BATCH}, 0
    while True:
        with db.begin() as session:
            found = session.execute(_FORGET_PLACEMENTS, values).scalar_one()
        removed += found
        if found < BATCH:
            return removed


def _forget_hidden(db: Database, before: datetime) -> int:
    """Delete points hidden by rewinds, of ended tasks."""
    of_ended = select(Job.id).join(Task, Task.id == Job.task_id).where(Job.id == PointChunk.job_id, Task.ended_at < before)
    return delete_in_batches(db, PointChunk, PointChunk.hidden_by.is_not(None), of_ended.exists())


def _forget_scores(db: Database) -> int:
    """Clear the scores at the warmup boundary of ended tasks' jobs: the cut alone needs them."""
    over = select(Task.id).where(Task.id == Job.task_id, Task.ended_at.is_not(None)).exists()
    removed = 0
    while True:
        old = (
            select(Job.id).where(Job.boundary_scores.is_not(None), over).limit(BATCH).with_for_update(skip_locked=True, of=Job)
        )
        with db.begin() as session:
            clear = update(Job).where(Job.id.in_(old)).values(boundary_scores=None)
            found = session.execute(clear.execution_options(synchronize_session=False))
            assert isinstance(found, CursorResult)
        removed += found.rowcount
        if found.rowcount < BATCH:
            return removed


_OF_JOB = (PointChunk.job_id, CurveSummary.job_id)
_OF_TASK = (
    *(TaskEvent.task_id, PlanChange.task_id, Adapter.task_id, TextEvaluation.task_id, MilestoneEvaluation.task_id),
    *(EndpointGrader.task_id, TaskMirror.task_id),
)
_STARTS = Task.spec["warm_start"]["adapter_id"].astext == Adapter.id
_STARTED_FROM = select(Task.id).where(_STARTS, Task.status.not_in(list(TASK_TERMINAL))).exists()


def _empty_deleted_tasks(db: Database, before: datetime) -> int:
    """Delete the rows that belong to deleted tasks; returns how many tasks. Task and job rows stay: they record the usage; and
    adapters that open tasks start from, until these end."""
    emptied, last = 0, ""
    while True:
        over = select(Task.id).where(Task.deleted_at < before, Task.emptied_at.is_(None), Task.id > last)
        with db.begin() as session:
            ids = list(session.scalars(over.order_by(Task.id).limit(_TASKS)))
        if not ids:
            return emptied
        jobs = select(Job.id).where(Job.task_id.in_(ids))
        for of_job in _OF_JOB:
            delete_in_batches(db, of_job.class_, of_job.in_(jobs))
        for of_task in _OF_TASK:
            kept = (~_STARTED_FROM,) if of_task is Adapter.task_id else ()
            delete_in_batches(db, of_task.class_, of_task.in_(ids), *kept)
        emptied += _note_empty(db, ids)
        last = ids[-1]


def _note_empty(db: Database, ids: list[str]) -> int:
    """Mark the tasks that have no rows left; others, whose rows are kept or another collector had locked, are tried again next
    time."""
    of_task = [~select(one).where(one == Task.id).exists() for one in _OF_TASK]
    of_job = [~select(one).join(Job, Job.id == one).where(Job.task_id == Task.id).exists() for one in _OF_JOB]
    empty = update(Task).where(Task.id.in_(ids), *of_task, *of_job).values(emptied_at=func.clock_timestamp())
    with db.begin() as session:
        found = session.execute(empty.execution_options(synchronize_session=False))
        assert isinstance(found, CursorResult)
    return found.rowcount
