"""What is handed out with an adapter beside its stored files: the README, rendered from rows. Knows no HTTP."""

from sqlalchemy.orm import Session

from contract.states import TASK_TERMINAL
from service.adapters.adapter_readme import NAME, readme
from service.adapters.models import Adapter
from service.files.models import File
from service.tasks.curves.curve_reader import MAX_RESOLUTION, Window, coarse_curves
from service.tasks.job_resource import jobs_of_task
from service.tasks.models import Task
from service.tasks.text_evaluations import evaluations_of, scores_of_task
from service.tenants.api_keys import Principal


def additional_files(session: Session, principal: Principal, adapter: Adapter) -> dict[str, bytes]:
    """The archive's additional files, by name: a generated README, once the task has ended and its content is final.

    Empty if a worker stored the adapter with its own README, or a tenant uploaded it.
    """
    if adapter.task_id is None or adapter.job_id is None:
        return {}
    task = session.get_one(Task, adapter.task_id)
    if task.status not in TASK_TERMINAL or any(file.path == NAME for file in adapter.folder.files):
        return {}
    jobs = jobs_of_task(session, principal, task.id)
    own = next(job.index for job in jobs if job.id == adapter.job_id)
    found = coarse_curves(session, principal, task.id, Window([own], ["val_loss"]), MAX_RESOLUTION).data
    scores = scores_of_task(session, principal, task.id)
    samples = evaluations_of(session, principal, task.id, [adapter.job_id]) if scores else []
    rows = session.get_one(File, task.train_file_id).format
    return {NAME: readme(task, adapter, jobs, rows, found[0] if found else None, scores, samples).encode()}
