"""A task on MLflow: a run for it, and below it one for each job; params, metrics and tags. Knows no tables.

Runs are found again by their tags, so a courier that dies between a run's creation and its record makes no second one. A batch
in doubt is compared with the last steps there; what is sent again has the same times, by which MLflow's database knows points
that it has.
"""

from collections.abc import Mapping
from typing import Any

from contract.states import JobStatus, TaskStatus
from service.mirrors.mlflow_client import MlflowClient, RunStatus
from service.mirrors.tracker import MirroredJob, MirroredTask, PointBatch, Tracker

_TASK, _JOB, _PARENT = "motet.task", "motet.job", "mlflow.parentRunId"  # tags

_OF_JOB: Mapping[JobStatus, RunStatus] = {
    JobStatus.COMPLETED: "FINISHED",
    JobStatus.EXITED: "FINISHED",
    JobStatus.FAILED: "FAILED",
    JobStatus.CANCELLED: "KILLED",
}
_OF_TASK: Mapping[TaskStatus, RunStatus] = {
    TaskStatus.SUCCEEDED: "FINISHED",
    TaskStatus.FAILED: "FAILED",
    TaskStatus.CANCELLED: "KILLED",
}


class MlflowTracker(Tracker):
    def __init__(self, client: MlflowClient) -> None:
        self._client = client

    @property
    def slowest(self) -> float:
        return self._client.calls.slowest

    def place(self, task: MirroredTask) -> str:
        return self._client.experiment(task.experiment)

    def unrecorded(self, task: MirroredTask) -> Mapping[str, str]:
        return self._client.runs_with_tag(task.at, _TASK, task.id, wanted=_JOB)

    def start_task(self, task: MirroredTask) -> str:
        assert task.started is not None  # before its first job there is nothing to show
        tags = {**task.tags, _TASK: task.id, "motet.base_model": task.base_model}
        return self._client.create_run(task.at, task.name or task.id, task.started, tags)

    def start_job(self, task: MirroredTask, job: MirroredJob) -> str:
        tags = {**task.tags, _TASK: task.id, _JOB: job.id, _PARENT: task.run}
        return self._client.create_run(task.at, f"job {job.index}", job.started, tags)

    def last_steps(self, job: MirroredJob) -> Mapping[str, int]:
        return self._client.last_steps(job.run)

    def log(self, task: MirroredTask, job: MirroredJob, batch: PointBatch) -> Mapping[str, Any]:
        self._client.log(job.run, batch.metrics, params=_params(task, job) if batch.first else None)
        return {}

    def end_job(self, task: MirroredTask, job: MirroredJob) -> None:
        assert job.ended is not None
        self._client.log(job.run, params=_params(task, job) if job.empty else None, tags=_ending(job))
        self._client.end_run(job.run, _OF_JOB[job.status], job.ended)

    def end_task(self, task: MirroredTask) -> None:
        assert task.ended is not None
        said = {"motet.status": str(task.status), **({"motet.winner": task.winner_job_id} if task.winner_job_id else {})}
        self._client.log(task.run, tags=said)
        self._client.end_run(task.run, _OF_TASK[task.status], task.ended)


def _params(task: MirroredTask, job: MirroredJob) -> dict[str, str]:
    """The job's hyperparameters, lists as their members."""
    said = {
        name: ", ".join(map(str, value)) if isinstance(value, list) else str(value)
        for name, value in job.config.items()
        if value is not None
    }
    return {"base_model": task.base_model, "job": str(job.index), **said}


def _ending(job: MirroredJob) -> dict[str, str]:
    found = {"motet.status": str(job.status), "motet.exit_reason": job.exit_reason, "motet.best_step": job.best_step}
    return {name: str(value) for name, value in found.items() if value is not None}
