"""Whom a task's page can ask beside the base: the winner first, other adapters, jobs that train by their newest checkpoint."""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import select
from sqlalchemy.orm import Session

from contract.states import JOB_TERMINAL
from service.files.models import File
from service.files.row_checks import Format
from service.tasks.job_resource import JobResource
from service.tasks.models import Job, Task
from service.tasks.stored_specs import effective
from service.tenants.api_keys import Principal
from service.tenants.tenant_scope import scoped
from service.web.views.job_rows import AdapterRow

_PLAIN_FORMATS = (Format.COMPLETION, Format.TEXT)  # preferences may be either; their format does not say


@dataclass(frozen=True)
class Askable:
    """models: what requests call them, and words for people. plain: whether its rows are texts without a chat template.
    refused: why nobody can be asked."""

    base: str
    precision: str
    models: Sequence[tuple[str, str]]
    plain: bool
    refused: str | None


def askable(
    session: Session, reader: Principal, task: Task, jobs: Sequence[JobResource], adapters: Sequence[AdapterRow]
) -> Askable:
    """adapters: the task's, the best first."""
    index = {job.id: job.index for job in jobs}
    kept = sorted(adapters, key=lambda row: not row.wins)
    models = [
        (row.adapter.id, f"{'the winner, ' if row.wins else ''}job {index[row.adapter.job_id]} ({row.label})")
        for row in kept
        if row.adapter.job_id is not None
    ]
    stored = select(Job.id, Job.index).where(
        Job.task_id == task.id, Job.checkpoint.is_not(None), Job.status.not_in(JOB_TERMINAL)
    )
    best_first = scoped(stored, Job, reader).order_by(Job.best_val_loss.nulls_last(), Job.index)
    models += [(id, f"job {at}, its newest checkpoint") for id, at in session.execute(best_first)]
    precision = str(effective(task).get("precision", "bf16"))
    file = session.scalar(scoped(select(File.format).where(File.id == task.train_file_id), File, reader))
    refused = "Motet generates no texts on a base in fp8: download the adapter and serve it." if precision == "fp8" else None
    return Askable(task.base_model, precision, models, file in _PLAIN_FORMATS, refused)
