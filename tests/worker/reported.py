"""What one placement reported, checked event by event, as strictly as the service does."""

from collections import defaultdict
from typing import Any

from contract.messages.placement_messages import Placement
from contract.messages.report_messages import (
    AdapterKept,
    Checkpointed,
    JobCompleted,
    JobExited,
    JobFailed,
    JobMoved,
    JobProposed,
    Points,
    ReportEvent,
    TextsEvaluated,
)
from contract.row_scores import RowScores
from contract.states import JOB_TERMINAL, JobStatus, check_job


class Reported:
    """What one placement reported, checked event by event."""

    def __init__(self, placement: Placement) -> None:
        self.placement = placement
        self.last_seq = placement.next_seq - 1
        self.live = True
        self.events: list[ReportEvent] = []
        self.status = {job.index: job.status for job in placement.jobs}
        self.proposed = {job.index: job.config if job.proposed else None for job in placement.jobs}
        self.step = {job.index: job.checkpoint.step if job.checkpoint else 0 for job in placement.jobs}
        self.curves: dict[tuple[int, str], dict[int, float | None]] = defaultdict(dict)
        self.checkpoints = {job.index: job.checkpoint for job in placement.jobs if job.checkpoint}
        self.manifests: dict[int, Any] = {}
        self.promoted = {job.index for job in placement.jobs if job.promoted}
        self.warmup_losses = {job.index: job.warmup_val_loss for job in placement.jobs if job.warmup_val_loss is not None}
        self.boundary_scores = {job.index: job.boundary_scores for job in placement.jobs if job.boundary_scores is not None}
        self.milestones = {job.index: job.milestone for job in placement.jobs}
        self.text_scores = {job.index: job.boundary_text_scores for job in placement.jobs}
        self.base_texts = (placement.base_texts_evaluated, placement.base_text_scores)

    def of(self, kind: type) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]

    @property
    def ended(self) -> dict[int, Any]:
        """The event that ended each job."""
        return {e.job: e for e in self.events if isinstance(e, JobCompleted | JobExited | JobFailed)}

    def apply(self, event: ReportEvent, objects: dict[str, bytes]) -> None:
        job = getattr(event, "job", None)
        if job is not None and self.status[job] in JOB_TERMINAL:
            raise ValueError(f"job {job} is {self.status[job]}, and now: {event}")
        match event:
            case Points():
                curve = self.curves[job, event.series]
                assert event.steps[0] > max([*curve, self.first_step(job)]), f"{event} after step {max(curve, default=None)}"
                curve.update(zip(event.steps, event.values, strict=True))
                self.step[job] = max(self.step[job], event.steps[-1])
            case JobProposed():
                assert (self.proposed[job], self.status[job]) == (None, JobStatus.PENDING), event
                self.proposed[job] = event.config
            case JobMoved():
                assert self.proposed[job] is not None, f"job {job} has no configuration yet: {event}"
                self.status[job] = check_job(self.status[job], event.status)
                if event.warmup_val_loss is not None:
                    self.warmup_losses[job] = event.warmup_val_loss
                if event.boundary_scores is not None:
                    self.boundary_scores[job] = event.boundary_scores
                if event.status == JobStatus.TRAINING:
                    self.promoted.add(job)
            case TextsEvaluated():
                self._texts(event)
            case Checkpointed():
                for index, ref in event.jobs.items():
                    assert self.status[index] not in (JobStatus.PENDING, *JOB_TERMINAL), self.status[index]
                    assert len(objects[ref.sha256]) == ref.bytes
                    assert ref.step <= self.step[index]
                    self.checkpoints[index] = ref
            case AdapterKept():
                assert all(len(objects[file.sha256]) == file.bytes for file in event.manifest.files)
                self.manifests[job] = event.manifest
            case JobCompleted():
                self.status[job] = check_job(self.status[job], JobStatus.COMPLETED)
            case JobExited():
                self.status[job] = check_job(self.status[job], JobStatus.EXITED)
            case JobFailed():
                self.status[job] = check_job(self.status[job], JobStatus.FAILED)
        self.events.append(event)

    def _texts(self, event: TextsEvaluated) -> None:
        results = event.prompt_scores.get(self.placement.spec.select_by)
        scores = RowScores.of_results(results) if results else None
        if event.job is None:
            self.base_texts = (True, scores)
        elif event.milestone is not None:
            self.milestones[event.job] = max(event.milestone, self.milestones[event.job])
            self.text_scores[event.job] = scores or self.text_scores[event.job]

    def first_step(self, job: int) -> int:
        ref = next(j for j in self.placement.jobs if j.index == job).checkpoint
        return ref.step if ref else 0
