"""A task on Weights & Biases: a run for each job, in a group of the task; config, history, summary and tags. Knows no tables.

A run's id is its job's, and history is sent to line numbers, so what may have arrived is sent again. `_step` rises with each
line, as W&B's SDK makes it: it is the point's step, or the next free one where a point came late; `step` is always the point's.
"""

import json
from collections.abc import Mapping
from datetime import timedelta
from itertools import groupby
from typing import Any, ClassVar, get_args

from contract.messages.report_messages import Series
from contract.states import JobStatus
from service.mirrors.tracker import MirroredJob, MirroredTask, PointBatch, Tracker
from service.mirrors.wandb_client import WandbClient

_EXIT_CODES: Mapping[JobStatus, int] = {  # 255: what the SDK says of a run that was interrupted
    JobStatus.COMPLETED: 0,
    JobStatus.EXITED: 0,
    JobStatus.FAILED: 1,
    JobStatus.CANCELLED: 255,
}
# `define_metric` in the SDK's short form: 1 is a metric's name, 5 the place of its x axis in this list (from 1), 6 options (1:
# the axis' last value is taken along, 3: somebody defined it), 7 what its summary is
_METRICS = [
    {"1": "step", "6": [3], "7": []},
    *({"1": series, "5": 1, "6": [1, 3], "7": []} for series in get_args(Series)),
]


class WandbTracker(Tracker):
    beat: ClassVar[timedelta | None] = timedelta(seconds=60)  # W&B says of a run that is silent for minutes that it crashed

    def __init__(self, client: WandbClient) -> None:
        self._client = client

    @property
    def slowest(self) -> float:
        return self._client.calls.slowest

    def place(self, task: MirroredTask) -> str:
        return self._client.default_entity()

    def start_task(self, task: MirroredTask) -> str:
        return task.id

    def start_job(self, task: MirroredTask, job: MirroredJob) -> str:
        name = task.options.get("name") or task.name or task.id
        config = {name: value for name, value in job.config.items() if value is not None}
        ours = {"base_model": task.base_model, "job": job.index, "motet_task": task.id, "motet_job": job.id}
        self._client.upsert_run(
            task.at,
            task.experiment,
            job.id,
            groupName=task.run,
            displayName=name if task.job_count == 1 else f"{name} job {job.index}",
            notes=task.name,
            jobType="job",
            tags=list(task.options.get("tags", ())),
            config={**config, **ours, "_wandb": {"m": _METRICS}},
        )
        return job.id

    def log(self, task: MirroredTask, job: MirroredJob, batch: PointBatch) -> Mapping[str, Any]:
        last, best = job.position.get("step", -1), list[float]()
        lines = list[dict[str, Any]]()
        for step, points in groupby(batch.metrics, key=lambda point: point.step):
            found = list(points)
            last = max(step, last + 1)
            times = {"_timestamp": found[0].at / 1000, "_runtime": _seconds(job, found[0].at)}
            lines.append({"_step": last, "step": step, **times, **{point.key: point.value for point in found}})
            best += (point.value for point in found if point.key == "val_loss" and point.value == point.value)
        summary = _summary(job)
        for line in lines:
            summary |= line
        if best:
            summary["best_val_loss"] = min([*best, summary.get("best_val_loss", best[0])])
        summary["_wandb"] = {"runtime": int(summary["_runtime"])}
        first = job.position.get("lines", 0)
        self._client.stream(_path(task, job), first, lines, summary)
        return {"lines": first + len(lines), "step": last, "summary": json.dumps(summary)}  # text: JSONB has no NaN

    def keep_alive(self, task: MirroredTask, job: MirroredJob) -> None:
        self._client.stream(_path(task, job))

    def end_job(self, task: MirroredTask, job: MirroredJob) -> None:
        assert job.ended is not None
        runtime = _seconds(job, job.ended)
        found = {"exit_reason": job.exit_reason, "best_step": job.best_step, "best_val_loss": job.best_val_loss}
        said = {name: value for name, value in found.items() if value is not None}
        summary = _summary(job) | said | {"status": str(job.status), "_runtime": runtime, "_wandb": {"runtime": int(runtime)}}
        self._client.stream(_path(task, job), summary=summary, exit_code=_EXIT_CODES[job.status])

    def end_task(self, task: MirroredTask) -> None:
        if task.winner_job_id is not None:
            tags = [*task.options.get("tags", ()), "winner"]
            self._client.upsert_run(task.at, task.experiment, task.winner_job_id, tags=tags)


def _path(task: MirroredTask, job: MirroredJob) -> tuple[str, str, str]:
    return task.at, task.experiment, job.run


def _summary(job: MirroredJob) -> dict[str, Any]:
    """As it was sent last."""
    found: dict[str, Any] = json.loads(job.position.get("summary", "{}"))
    return found


def _seconds(job: MirroredJob, at: int) -> float:
    return max(0, at - job.started) / 1000
