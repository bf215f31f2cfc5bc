"""Which of a task's jobs is the best: the winner, or before there is one the job with the lowest validation loss. Pure.

In a DPO search over beta losses cannot be compared: there is no best job before there is a winner.
"""

import math
from collections.abc import Sequence

from contract.compatibility.lenient_documents import have_one
from service.tasks.job_resource import JobResource


def losses_comparable(jobs: Sequence[JobResource]) -> bool:
    """Whether the jobs have one beta, on which a DPO loss depends."""
    return have_one((job.config for job in jobs), "beta")


def best_job(jobs: Sequence[JobResource], winner_job_id: str | None) -> JobResource | None:
    """winner_job_id: None before there is a winner."""
    scored = [job for job in jobs if job.best_val_loss is not None]
    first = min(scored, key=lambda job: best_first(job, winner_job_id), default=None)
    if first is None or first.id == winner_job_id:
        return first
    return first if losses_comparable(jobs) else None


def best_first(job: JobResource, winner_job_id: str | None) -> tuple[bool, float, int]:
    """The sort key of a table of jobs: the winner, then by loss."""
    return job.id != winner_job_id, job.best_val_loss if job.best_val_loss is not None else math.inf, job.index
