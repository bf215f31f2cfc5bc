"""One visit of a tracking server: what of a task it lacks is sent, as far as the time of a visit allows.

Each answer is recorded before the next call, so a visit that breaks off anywhere is continued by the next one. Runs are found
again by their tags, so a courier that dies between a run's creation and its record makes no second one.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass

from contract.states import JobStatus, TaskStatus
from service.mirrors.mirrored_task import MirroredJob, MirroredTask, TaskReader
from service.mirrors.mlflow_client import MlflowClient, RunStatus

VISIT_SECONDS = 30.0  # after which the rest is left to the next visit
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


@dataclass(frozen=True)
class Visited:
    """version: of the task that was seen. left: there is more to send. finished: the task has ended, and all of it is there."""

    version: int
    left: bool = False
    finished: bool = False


@dataclass(frozen=True)
class _Runs:
    """What the server has: ids of the experiment, of the task's run, and, by job, of runs that nobody recorded."""

    experiment: str
    parent: str
    of_jobs: Mapping[str, str]


class MirrorVisit:
    def __init__(self, reader: TaskReader, client: MlflowClient) -> None:
        self._reader, self._client, self._until = reader, client, time.monotonic() + VISIT_SECONDS

    def run(self) -> Visited:
        """Raises CallFailed, and ClaimLost."""
        task = self._reader.task()
        if task.started is None:  # no job has, or will any more: there is nothing to show
            return Visited(task.version, finished=task.ended is not None)
        there = self._runs(task, task.started)
        for job in task.jobs:
            if not self._job(task, there, job):
                return Visited(task.version, left=True)
        if task.ended is not None:
            said = {"motet.status": str(task.status), **({"motet.winner": task.winner_job_id} if task.winner_job_id else {})}
            self._client.log(there.parent, tags=said)
            self._client.end_run(there.parent, _OF_TASK[task.status], task.ended)
        return Visited(task.version, finished=task.ended is not None)

    def _late(self) -> bool:
        return time.monotonic() >= self._until

    def _runs(self, task: MirroredTask, started: int) -> _Runs:
        experiment = task.experiment_id
        if experiment is None:
            experiment = self._client.experiment(task.experiment)
            self._reader.note_experiment(experiment)
        found: dict[str, str] = {}
        if task.run_id is None or any(job.run_id is None for job in task.jobs):
            found = self._client.runs_with_tag(experiment, _TASK, task.id, wanted=_JOB)
        parent = task.run_id
        if parent is None:
            tags = {**task.tags, _TASK: task.id, "motet.base_model": task.base_model}
            parent = found.get("") or self._client.create_run(experiment, task.name or task.id, started, tags)
            self._reader.note_run(parent, None)
        return _Runs(experiment, parent, found)

    def _job(self, task: MirroredTask, there: _Runs, job: MirroredJob) -> bool:
        """Bring one job up to date, or send at least something of it; returns whether there is time for more."""
        run_id, described = job.run_id or self._new_run(task, there, job), not job.empty
        if job.in_doubt:
            self._reader.settle(job, self._client.last_steps(run_id))
        while (batch := self._reader.next_batch(job)) is not None:
            self._client.log(run_id, batch.metrics, params=_params(task, job) if batch.first else None)
            self._reader.note_sent(job, batch)
            described = True
            if self._late():
                return False
        if job.ended is not None:
            self._client.log(run_id, params=None if described else _params(task, job), tags=_ending(job))
            self._client.end_run(run_id, _OF_JOB[job.status], job.ended)
            self._reader.note_ended(job)
        return not self._late()

    def _new_run(self, task: MirroredTask, there: _Runs, job: MirroredJob) -> str:
        run_id = there.of_jobs.get(job.id)
        if run_id is None:
            tags = {**task.tags, _TASK: task.id, _JOB: job.id, _PARENT: there.parent}
            run_id = self._client.create_run(there.experiment, f"job {job.index}", job.started, tags)
        self._reader.note_run(run_id, job)
        return run_id


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
