"""Everything that a node should run, read from the rows in one snapshot. Knows no HTTP, and changes nothing."""

import logging
import math
from itertools import takewhile
from typing import NamedTuple

from sqlalchemy import select
from sqlalchemy.orm import Session, selectinload

from contract.job_schedule import JobSchedule
from contract.messages.placement_messages import (
    DesiredState,
    FileRef,
    JobAssignment,
    Unchanged,
    WarmStartRef,
)
from contract.messages.placement_messages import Placement as PlacementMessage
from contract.row_scores import RowScores
from contract.states import JOB_TERMINAL, ExitReason, JobStatus
from contract.task_spec import TaskSpec
from service.adapters.models import Adapter
from service.database.checked_json import required
from service.database.engine import clock
from service.files.models import File
from service.fleet import answer_sessions
from service.fleet.base_models.base_refs import base_ref
from service.fleet.merges import merge_leases
from service.fleet.models import BaseModel, Node, Placement
from service.fleet.worker_authentication import placement_token
from service.settings import Settings
from service.tasks.curves.curve_reader import values_at
from service.tasks.lifecycle.task_trace import placement_traceparent
from service.tasks.milestone_evaluations import boundary_scores, last_of_jobs
from service.tasks.models import Job, Task
from service.tasks.stored_specs import config_of, part, spec_of
from service.tasks.text_evaluations import base_is_known, scores_to_select_by
from service.tenants.models import Tenant

log = logging.getLogger(__name__)


def desired_state(session: Session, settings: Settings, node: Node) -> DesiredState:
    """The node's live placements, with all that their executors need. The session's transaction should be repeatable read.

    A placement that this version cannot describe is listed for the node to leave as it is.
    """
    rows = session.execute(
        select(Placement, Task)
        .join(Task, Task.id == Placement.task_id)
        .where(Placement.node_id == node.id, Placement.ended_at.is_(None))
        .options(selectinload(Task.jobs))
        .order_by(Placement.id)
    ).all()
    placements, unchanged = [], []
    for placement, task in rows:
        try:
            placements.append(_placement(session, settings, placement, task))
        except ValueError as error:  # SpecUnreadable, or a status of a newer version
            log.warning("task %s goes on as its node has it, since this version cannot read it: %s", task.id, error)
            unchanged.append(Unchanged(placement_id=placement.id, leave=placement.leaving is not None))
    sessions, merges = answer_sessions.wanted(session, settings, node), merge_leases.wanted(session, settings, node)
    version = node.desired_version
    return DesiredState(version=version, placements=placements, unchanged=unchanged, sessions=sessions, merges=merges)


def why_untold(session: Session, settings: Settings, placement: Placement, task: Task) -> ValueError | None:
    """Why this version can tell no node of the placement; None where it can."""
    try:
        _placement(session, settings, placement, task)
    except ValueError as error:
        return error
    return None


def _placement(session: Session, settings: Settings, placement: Placement, task: Task) -> PlacementMessage:
    spec = spec_of(task)
    base = session.get_one(BaseModel, task.base_model)
    weight = session.scalars(select(Tenant.weight).where(Tenant.id == task.tenant_id)).one()
    left = (placement.lease_until - clock(session)).total_seconds()
    return PlacementMessage(
        placement_id=placement.id,
        fence=placement.fence,
        token=placement_token(settings, placement.id, placement.fence),
        lease_seconds=max(0.0, left),
        task_id=task.id,
        device_indexes=placement.device_indexes,
        base=base_ref(session, base, task.base_revision, spec.precision),
        train_file=_file(session, task.train_file_id),
        validation_file=_file(session, task.validation_file_id) if task.validation_file_id else None,
        prompts_file=_file(session, task.prompts_file_id) if task.prompts_file_id else None,
        spec=spec,
        jobs=_jobs(session, spec, task),
        base_val_loss=task.base_val_loss,
        base_scores=required(task.base_scores),
        base_texts_evaluated=spec.evaluation is not None and base_is_known(session, task),
        base_text_scores=scores_to_select_by(session, task, spec.cut_metric).get(None) if spec.cut_metric else None,
        warm_start=warm_start(session, task),
        next_seq=placement.last_seq + 1,
        leave=placement.leaving is not None,
        request_id=task.request_id,
        traceparent=placement_traceparent(task, placement),
        tenant_id=task.tenant_id,
        created_at=task.created_at,
        weight=weight,
        max_slowdown=placement.max_slowdown,
    )


def warm_start(session: Session, task: Task) -> WarmStartRef | None:
    """The adapter that the task starts from; None also if it no longer exists. Raises ResultUnreadable."""
    adapter = starts_from(session, task)
    return WarmStartRef(adapter_id=adapter.id, files=adapter.folder.files) if adapter is not None else None


def starts_from(session: Session, task: Task) -> Adapter | None:
    """The same as it is stored. It must belong to the task's tenant."""
    wanted = part(task, "warm_start").get("adapter_id")
    adapter = session.get(Adapter, wanted) if isinstance(wanted, str) else None
    return adapter if adapter is not None and adapter.tenant_id == task.tenant_id else None


def _file(session: Session, file_id: str) -> FileRef:
    file = session.get_one(File, file_id)
    return FileRef(file_id=file.id, sha256=file.sha256, rows=file.rows)


class _AtBoundary(NamedTuple):
    """What a job was ranked by: on each validation row, on each prompt. milestone: see JobAssignment."""

    rows: RowScores | None
    texts: RowScores | None
    milestone: int


def _jobs(session: Session, spec: TaskSpec, task: Task) -> list[JobAssignment]:
    """The task's jobs, with the scores that they were ranked by for as long as the cut may need them."""
    scores: dict[str, RowScores] = {}
    texts: dict[str, RowScores] = {}
    if any(job.status not in JOB_TERMINAL and not job.promoted for job in task.jobs):
        stored = select(Job.id, Job.boundary_scores).where(Job.task_id == task.id, Job.boundary_scores.is_not(None))
        scores = {id: found for id, said in session.execute(stored) if (found := required(said)) is not None}
        texts = boundary_scores(session, task, spec.cut_metric) if spec.cut_metric is not None else {}
    asked = spec.evaluation is not None and (spec.evaluation.milestones or spec.cut_metric is not None)
    milestones = last_of_jobs(session, task) if asked else {}
    known = {job.id: _AtBoundary(scores.get(job.id), texts.get(job.id), milestones.get(job.id, 0)) for job in task.jobs}
    return [_job(session, spec, task, job, known[job.id]) for job in task.jobs]


def _job(session: Session, spec: TaskSpec, task: Task, job: Job, known: _AtBoundary) -> JobAssignment:
    ended, config = job.status in JOB_TERMINAL, config_of(job.config)
    rungs = job.rung_losses or []
    if ended and not rungs and spec.early_exit.policy == "asha" and task.train_rows:
        # by a worker that did not tell them, or of a job that failed: its curve's, of the trend's rows
        losses = values_at(session, job.id, "val_loss", JobSchedule.of(spec, config, task.train_rows).rungs)
        rungs = list(takewhile(math.isfinite, losses))  # it diverged where one is not, and did not reach that rung
    return JobAssignment(
        job_id=job.id,
        index=job.index,
        config=config,
        proposed=job.proposed,
        status=JobStatus(job.status),
        exit_reason=ExitReason(job.exit_reason) if job.exit_reason else None,
        warmup_val_loss=job.warmup_val_loss,
        boundary_scores=known.rows,
        boundary_text_scores=known.texts,
        rung_losses=rungs,
        promoted=job.promoted,
        checkpoint=required(job.checkpoint, f"job {job.index}: ") if not ended else None,
        milestone=known.milestone,
    )
