"""Applies a placement's report to its task: jobs change state and end, curves grow, checkpoints and adapters are committed.

Callers hold the task's row lock, have checked the fence, and have asked storage before (`held_sizes`), which may take long.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from functools import cached_property
from typing import Any

from sqlalchemy import bindparam, select, text
from sqlalchemy.orm import Session, defer
from sqlalchemy.orm.attributes import set_committed_value

from contract.compatibility.lenient_documents import sent
from contract.messages.adapter_manifest import AdapterManifest
from contract.messages.report_messages import (
    ActivationsChosen,
    AdapterKept,
    Attached,
    BaseEvaluated,
    Checkpointed,
    Detached,
    JobCompleted,
    JobExited,
    JobFailed,
    JobMoved,
    JobProposed,
    PlacementFailed,
    Points,
    ReportEvent,
    TextsEvaluated,
    Throughput,
)
from contract.row_scores import RowScores
from contract.states import JOB_TERMINAL, IllegalTransition, JobStatus
from service.adapters.models import AVERAGED_STEPS, Adapter
from service.database.engine import clock, new_id
from service.graders import waiting_texts
from service.storage.object_store import ObjectMissing, Storage
from service.tasks import milestone_evaluations
from service.tasks.curves.curve_writer import Curves, StepRepeated, summarise
from service.tasks.lifecycle.conclusion import conclude, fail_unfinished
from service.tasks.lifecycle.event_log import EventBuffer, EventKind
from service.tasks.lifecycle.transitions import enter_job
from service.tasks.models import Job, Task
from service.tasks.text_evaluations import store, told_of

_JOBS = select(Job).where(Job.task_id == bindparam("task")).options(defer(Job.config))  # a report needs no config
_AVERAGED = select(AVERAGED_STEPS)
_REACH = text(
    """UPDATE jobs j SET step = greatest(j.step, n.step)
    FROM unnest(CAST(:jobs AS varchar[]), CAST(:steps AS integer[])) AS n(id, step) WHERE j.id = n.id"""
)


def _averaged(steps: Sequence[int] | None) -> dict[str, Any]:
    """What an event tells of an adapter that is a mean; of another nothing."""
    return {"averaged_steps": list(steps)} if steps else {}


class EventRefused(ValueError):
    """An event contradicts the stored state. The message is for the worker's operator."""


def named_objects(events: Sequence[ReportEvent]) -> set[str]:
    """The sha256 of all checkpoints and files of adapters that these events commit."""
    checkpoints = {ref.sha256 for event in events if isinstance(event, Checkpointed) for ref in event.jobs.values()}
    return checkpoints | {file.sha256 for event in events if isinstance(event, AdapterKept) for file in event.manifest.files}


def held_sizes(storage: Storage, sha256s: Iterable[str]) -> dict[str, int]:
    """Bytes of those of these objects that storage holds. Raises StorageAway and the like."""
    held = {}
    for sha256 in sha256s:
        with suppress(ObjectMissing):
            held[sha256] = storage.size(sha256)
    return held


class ReportReducer:
    """Reduces events into one task, in order; then writes the curves, and concludes the task if its last job ended.

    held: `held_sizes` of the events' `named_objects`.
    """

    def __init__(self, session: Session, held: Mapping[str, int], task: Task) -> None:
        self._session, self._held, self._task = session, held, task
        self._jobs = {job.index: job for job in session.scalars(_JOBS, {"task": task.id})}
        self._events = EventBuffer(session, task)
        self._failure: str | None = None
        self._ended: list[str] = []
        self._reached: dict[str, int] = {}  # steps by job id that only points report

    def apply(self, events: Sequence[ReportEvent]) -> None:
        """Apply all events. Raises EventRefused, which names the event; the caller rolls back."""
        points = [event for event in events if isinstance(event, Points) and event.job in self._jobs]
        self._curves = Curves(self._session, ((self._jobs[event.job].id, event.series) for event in points))
        for at, event in enumerate(events):
            try:
                self._apply(event)
            except (EventRefused, IllegalTransition, StepRepeated) as error:
                raise EventRefused(f"events[{at}] ({event.kind}): {error}") from None
        self._curves.flush()
        if self._reached:
            self._session.execute(_REACH, {"jobs": list(self._reached), "steps": list(self._reached.values())})
        self._events.flush()
        for job_id in self._ended:
            summarise(self._session, job_id)
        if self._failure is not None:
            fail_unfinished(self._task, self._failure)
        if self._ended or self._failure is not None:
            conclude(self._session, self._task, self._failure)

    @cached_property
    def _now(self) -> datetime:
        """One timestamp for the whole report. Read before any job is changed: the query would flush that one job alone, and a
        task's first report changes all its jobs."""
        return clock(self._session)

    def _apply(self, event: ReportEvent) -> None:
        match event:
            case Attached():
                self._attached(event)
            case ActivationsChosen():
                self._events.add(EventKind.ACTIVATIONS, {"recompute": event.recompute, "reason": event.reason})
            case BaseEvaluated():
                self._task.base_val_loss = event.val_loss
                self._task.base_scores = event.scores
                self._events.add(EventKind.BASE, {"val_loss": event.val_loss} | self._overlap())
            case TextsEvaluated():
                self._texts(event)
            case JobProposed():
                self._proposed(event)
            case JobMoved():
                self._moved(event)
            case Points():
                self._points(event)
            case Checkpointed():
                self._checkpointed(event)
            case AdapterKept():
                self._adapter_kept(event.job, event.manifest, event.scores)
            case JobCompleted():
                self._end(event, JobStatus.COMPLETED)
            case JobExited():
                job = self._unfinished(event.job)
                job.exit_reason, job.exit_evidence = event.reason, dict(event.evidence)
                self._end(event, JobStatus.EXITED)
            case JobFailed():
                self._unfinished(event.job).error = event.error
                self._end(event, JobStatus.FAILED)
            case PlacementFailed():
                self._failure = event.error
            case Throughput() | Detached():
                pass  # about the placement, not the task

    def _texts(self, event: TextsEvaluated) -> None:
        """An adapter's scores are told with the adapter, which follows. Those of endpoint graders come when they come."""
        of = (None if event.job is None else self._unfinished(event.job).id), event.milestone
        notes = waiting_texts.add(self._session, self._task.tenant_id, self._task.id, of, event.texts)
        event = event.model_copy(update={"notes": [*event.notes, *notes]})
        if event.job is not None and event.milestone is not None:
            job = self._unfinished(event.job)
            self._events.job(job, milestone_evaluations.store(self._session, self._task, job, event.milestone, event))
            return
        store(self._session, self._task, None if event.job is None else self._unfinished(event.job), event)
        if event.job is None:
            told = told_of(self._session, self._task, None)
            self._events.add(EventKind.BASE, {"val_loss": self._task.base_val_loss, **told})

    def _job(self, index: int) -> Job:
        if index not in self._jobs:
            raise EventRefused(f"the task has jobs 0 to {len(self._jobs) - 1}, not {index}")
        return self._jobs[index]

    def _unfinished(self, index: int) -> Job:
        job = self._job(index)
        if job.status in JOB_TERMINAL:
            raise EventRefused(f"job {index} has ended as {job.status}; nothing more can happen to it")
        return job

    def _attached(self, event: Attached) -> None:
        task = self._task
        task.train_rows, task.validation_rows = event.train_rows, event.validation_rows
        task.trend_rows = event.trend_rows
        task.truncated_rows, task.skipped_rows = event.truncated_rows, event.skipped_rows
        if event.overlap_rows is not None:  # a worker of before does not count them
            task.overlap_rows = event.overlap_rows
        for index, steps in event.total_steps.items():
            job = self._job(index)
            if job.status not in JOB_TERMINAL:
                job.total_steps, job.warmup_steps = steps, event.warmup_steps.get(index)

    def _overlap(self) -> dict[str, Any]:
        """What the event of the first validation loss tells of rows that are also trained on; of none nothing."""
        rows = {"validation": self._task.validation_rows, "overlap": self._task.overlap_rows}
        return {"rows": rows} if self._task.overlap_rows else {}

    def _proposed(self, event: JobProposed) -> None:
        job, config = self._unfinished(event.job), event.config.model_dump(mode="json") | sent(event.config)
        if job.proposed or job.status != JobStatus.PENDING:
            raise EventRefused(f"job {event.job} has its configuration; none can be proposed for it any more")
        job.config, job.proposed = config, True
        job.total_steps, job.warmup_steps = event.total_steps, event.warmup_steps
        self._events.job(job, {"config": config})

    def _moved(self, event: JobMoved) -> None:
        job = self._unfinished(event.job)
        if job.status != event.status:
            enter_job(job, event.status, self._now)
        job.step = max(job.step, event.step)
        if event.warmup_val_loss is not None:
            job.warmup_val_loss = event.warmup_val_loss
            job.boundary_scores = event.boundary_scores
        self._events.job(job)

    def _points(self, event: Points) -> None:
        if len(event.steps) != len(event.values):
            raise EventRefused(f"{len(event.steps)} steps, but {len(event.values)} values")
        job = self._unfinished(event.job)
        values = [math.nan if value is None else value for value in event.values]
        self._curves.append(job.id, event.series, event.steps, values)
        self._events.points(event.job, event.series, event.steps, values)
        if event.steps[-1] > job.step:
            self._reached[job.id] = event.steps[-1]
            set_committed_value(job, "step", event.steps[-1])  # written with all other jobs' steps in one statement
        if event.series == "val_loss":
            for step, value in zip(event.steps, values, strict=True):
                if math.isfinite(value) and (job.best_val_loss is None or value < job.best_val_loss):
                    job.best_step, job.best_val_loss = step, value

    def _checkpointed(self, event: Checkpointed) -> None:
        for index, checkpoint in event.jobs.items():
            job = self._unfinished(index)
            if job.status == JobStatus.PENDING:
                raise EventRefused(f"job {index} has a checkpoint, but was never said to have started")
            if checkpoint.step > job.step:
                raise EventRefused(f"job {index}'s checkpoint is of step {checkpoint.step}, reported is step {job.step}")
            self._must_hold(checkpoint.sha256, checkpoint.bytes, f"job {index}'s checkpoint")
            job.checkpoint = checkpoint
        self._task.lost_executors = 0

    def _adapter_kept(self, index: int, manifest: AdapterManifest, scores: RowScores | None) -> None:
        job, lineage = self._unfinished(index), manifest.lineage
        if (lineage.job_id, lineage.task_id, lineage.base_revision) != (job.id, self._task.id, self._task.base_revision):
            raise EventRefused(f"the adapter's lineage is of another job, task or base than {job.id} of {self._task.id}")
        if not math.isfinite(manifest.val_loss):
            raise EventRefused("an adapter is kept for a finite validation loss")
        for file in manifest.files:
            self._must_hold(file.sha256, file.bytes, f"the adapter's file {file.path}")
        adapter = self._session.scalar(select(Adapter).where(Adapter.job_id == job.id))
        if adapter is not None:
            raise EventRefused(f"job {index} already has its adapter {adapter.id}")
        kept = Adapter(
            id=new_id("adapter"),
            tenant_id=self._task.tenant_id,
            task_id=self._task.id,
            job_id=job.id,
            step=manifest.step,
            val_loss=manifest.val_loss,
            scores=scores,
            bytes=sum(file.bytes for file in manifest.files),
            manifest=manifest,
        )
        self._session.add(kept)
        told = {"job": index, "adapter_id": kept.id, "step": kept.step, "val_loss": kept.val_loss}
        told |= _averaged(manifest.averaged_steps) | told_of(self._session, self._task, job)
        self._events.add(EventKind.ADAPTER, told)
        self._session.flush()

    def _end(self, event: JobCompleted | JobExited | JobFailed, status: JobStatus) -> Job:
        job = self._unfinished(event.job)
        enter_job(job, status, self._now)
        job.step = max(job.step, event.step)
        if not isinstance(event, JobFailed):
            job.best_step, job.best_val_loss = event.best_step, event.best_val_loss
            job.rung_losses = event.rung_losses or None
        self._task.lost_executors = 0
        self._ended.append(job.id)
        self._events.job(job, _averaged(self._session.scalar(_AVERAGED.where(Adapter.job_id == job.id))))
        return job

    def _must_hold(self, sha256: str, size: int, what: str) -> None:
        stored = self._held.get(sha256)
        if stored is None:
            raise EventRefused(f"{what} ({sha256}) is not in storage; upload it before it is reported")
        if stored != size:
            raise EventRefused(f"{what} ({sha256}) has {stored} bytes in storage, {size} were reported")
