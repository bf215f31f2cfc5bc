"""A job as the API shows it: one configuration of a task."""

from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, Field, TypeAdapter
from sqlalchemy import case, select
from sqlalchemy.orm import Session

from contract.compatibility.lenient_documents import ShownConfig, unread_fields
from contract.job_config import JobConfig
from contract.states import ExitReason, JobStatus
from contract.wording.step_words import listed
from service.adapters.models import AVERAGED_STEPS, Adapter
from service.database.checked_json import Unread
from service.http.problems import FieldError
from service.tasks.models import Job, Task
from service.tenants.api_keys import Principal
from service.tenants.tenant_scope import missing, scoped

# as it is stored, read by whatever reads rows
StoredConfig = Annotated[ShownConfig, BeforeValidator(Job.__table__.c.config.type.read)]


class Exit(BaseModel):
    """Early exit's verdict."""

    reason: ExitReason
    step: int
    evidence: dict[str, Any] = Field(description="The numbers that decided it")


class JobResource(BaseModel):
    object: Literal["job"] = "job"
    id: str
    task_id: str
    index: int
    config: ShownConfig
    proposed: bool = Field(
        description="False for a job in a later round of a tpe search, until that round begins: `config` then stands in for "
        "the one that will be proposed"
    )
    status: JobStatus
    step: int
    total_steps: int | None
    warmup_steps: int | None
    warmup_val_loss: float | None
    warmup_score: float | None = Field(
        description="Where a text metric (select_by) ranks jobs at the end of warmup: its result there, from 0 to 1; null "
        "where there is none yet, or the texts could not be scored, as the evaluation at this milestone says"
    )
    promoted: bool = Field(description="Passed the selection at the end of warmup")
    exit: Exit | None
    error: str | None
    best_step: int | None
    best_val_loss: float | None
    averaged_steps: list[int] = Field(
        description="The steps whose weights its adapter is the mean of; none: it has those of `best_step`"
    )
    adapter_id: str | None = Field(description="Null also where it was deleted")
    started_at: datetime | None
    ended_at: datetime | None
    problems: list[FieldError] | None = Field(default=None, description="What of its stored row cannot be read")


_STATUSES = frozenset(JobStatus)
_CONFIG: TypeAdapter[JobConfig] = TypeAdapter(ShownConfig)
_WAY_OUT = "An operator can write it anew in the database; or submit the task again."
_EVIDENCE = f"The stored jobs.exit_evidence of this job cannot be read and is shown as empty. {_WAY_OUT}"


def jobs_of_task(session: Session, principal: Principal, task_id: str) -> list[JobResource]:
    """The task's jobs in index order; empty if the task is not the caller's."""
    return list(_jobs(session, principal, Job.task_id == task_id))


def find_job(session: Session, principal: Principal, job_id: str) -> JobResource:
    """The caller's job. Raises NotFound."""
    job = next(_jobs(session, principal, Job.id == job_id), None)
    if job is None:
        raise missing("job", job_id)
    return job


def _jobs(session: Session, principal: Principal, which: Any) -> Iterator[JobResource]:
    kept = case((Adapter.deleted_at.is_(None), Adapter.id))
    there = select(Job, kept, AVERAGED_STEPS).join(Task, Task.id == Job.task_id)
    adapters = there.where(Task.deleted_at.is_(None)).outerjoin(Adapter, Adapter.job_id == Job.id)
    jobs = scoped(adapters.where(which), Job, principal)
    for job, adapter_id, averaged_steps in session.execute(jobs.order_by(Job.index)):
        yield _of(job, adapter_id, averaged_steps or [])


def _of(job: Job, adapter_id: str | None, averaged_steps: list[int]) -> JobResource:
    verdict = None
    if job.exit_reason is not None:
        verdict = Exit(reason=ExitReason(job.exit_reason), step=job.step, evidence=job.exit_evidence or {})
    config = _CONFIG.validate_python(job.config)
    return JobResource(
        id=job.id,
        task_id=job.task_id,
        index=job.index,
        config=config,
        proposed=job.proposed,
        status=shown_status(job.status),
        step=job.step,
        total_steps=job.total_steps,
        warmup_steps=job.warmup_steps,
        warmup_val_loss=job.warmup_val_loss,
        warmup_score=job.warmup_score,
        promoted=job.promoted,
        exit=verdict,
        error=job.error,
        best_step=job.best_step,
        best_val_loss=job.best_val_loss,
        averaged_steps=averaged_steps,
        adapter_id=adapter_id,
        started_at=job.started_at,
        ended_at=job.ended_at,
        problems=list(_unread(job, config)) or None,
    )


def shown_status(said: str) -> JobStatus:
    """The status as it is shown: one of a newer version as training, since this one sees no end of the job."""
    return JobStatus(said) if said in _STATUSES else JobStatus.TRAINING


def counts_by_status(groups: Iterable[Any]) -> dict[JobStatus, int]:
    """How many jobs are shown with each status. groups: rows with a stored status and a count."""
    found = dict.fromkeys(JobStatus, 0)
    for row in groups:
        found[shown_status(row.status)] += row.count
    return found


def _unread(job: Job, config: JobConfig) -> Iterator[FieldError]:
    if job.status not in _STATUSES:
        message = f"Its status, {job.status!r}, is of a newer version of Motet; it is shown as training."
        yield FieldError(field="status", code="unreadable", message=message)
    if unread := unread_fields(config):
        yield FieldError(field="config", code="unreadable", message=config_words("this job", unread))
    if isinstance(job.exit_evidence, Unread):
        yield FieldError(field="exit_evidence", code="unreadable", message=_EVIDENCE)


def config_words(whose: str, unread: list[str]) -> str:
    """That these fields of a job's stored configuration cannot be read, and the way out."""
    return f'The {listed(unread)} in the stored jobs.config of {whose} cannot be read and is labelled "?". {_WAY_OUT}'
