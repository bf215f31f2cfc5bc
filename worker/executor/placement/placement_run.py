"""One placement on an executor: its task's jobs, what is known of its base, and the events that report them.

Each change of a job's state happens here, together with the event that reports it. Holds no tensors and runs nothing. The
modules beside this one call a PlacementRun `task`: it is the task's one live placement.
"""

import logging
from collections.abc import Mapping, Sequence
from typing import Literal

from contract.job_config import JobConfig
from contract.job_schedule import JobSchedule
from contract.messages.adapter_manifest import AdapterManifest
from contract.messages.placement_messages import JobAssignment, Placement
from contract.messages.report_messages import (
    ActivationsChosen,
    AdapterKept,
    Attached,
    BaseEvaluated,
    Detached,
    JobCompleted,
    JobExited,
    JobFailed,
    JobMoved,
    JobProposed,
    Points,
    ReportEvent,
)
from contract.row_scores import RowScores
from contract.states import JOB_TERMINAL, JobStatus
from worker.boot_clock import boot_now
from worker.data.dataset import DataSet
from worker.data.evaluation_prompts import Prompt, PromptFile
from worker.executor.placement.job_run import JobRun
from worker.executor.placement.placement_lease import Lease
from worker.executor.placement.placement_phases import PlacementPhases
from worker.executor.placement.training_points import training_points, validation_values
from worker.executor.placement.work_done import Slowdown, WorkDone
from worker.executor.reporter import Reporter
from worker.policy.activations import Activations
from worker.policy.early_exit.policy_selection import policy_of
from worker.policy.job_record import (
    Ending,
    JobEnded,
    JobProgress,
    Parked,
    Promoted,
    Stage,
    StepsTaken,
    TrainingBegan,
    WarmupBegan,
)
from worker.replicas.dpo_reference import Reference
from worker.replicas.packed_step import Stepped, Work
from worker.replicas.validation_pass import ValidationResult

log = logging.getLogger(__name__)


class PlacementRun:
    """One task as it is placed on this executor, which the executor's code calls `task`: its jobs, its lease, its reports."""

    def __init__(self, placement: Placement, lease: Lease, reporter: Reporter) -> None:
        self.placement, self.lease, self.reporter = placement, lease, reporter
        self.phases = PlacementPhases(reporter.trace if placement.traceparent is not None else None)
        self.policy = policy_of(placement.spec.early_exit, placement.spec.cut_metric)
        self.data: DataSet | None = None
        self.prompts: PromptFile | None = None  # of its evaluation; None: validation rows
        self.text_prompts: list[Prompt] | None = None  # of its evaluation, once they were asked for
        self.runs: list[JobRun] = []
        self.unproposed: dict[int, JobAssignment] = {}  # jobs of later rounds of a tpe search
        self.configs = {job.index: job.config for job in placement.jobs if job.proposed}
        self.failures = {job.index: "" for job in placement.jobs if job.status == JobStatus.FAILED}  # why, where known
        self.reference: Reference | None = None  # under dpo, once it is known
        self._by_index: dict[int, JobRun] = {}
        self.base_known = placement.base_val_loss is not None  # measured, by this placement or an earlier one
        self.base_scores = placement.base_scores
        self.base_texts_known = placement.base_texts_evaluated or placement.spec.cut_metric is None  # of what the cut needs
        self.base_text_scores = placement.base_text_scores
        self._last_end: list[ReportEvent] | None = None  # of its jobs, which waits while the base is evaluated; None: it is not
        self.checkpointing, self.checkpoint_due = False, 0.0
        self.leaving = False  # trains no more, and leaves once its jobs are stored
        self.detaching = False
        self._attached_at: float | None = boot_now()  # until its first step
        self.activations = Activations(False, "activations are kept")
        self._sharding: str | None = None
        self._reported_reason: str | None = None  # of the activations, as last reported
        self._done = WorkDone()

    @property
    def key(self) -> str:
        return self.placement.placement_id

    def __getitem__(self, index: int) -> JobRun:
        """The unfinished job of this index in the task."""
        return self._by_index[index]

    @property
    def all_ended(self) -> bool:
        """Whether every job has ended. The last one's end may be recorded later: see `await_base`."""
        return self.data is not None and not self.unproposed and all(run.stage is Stage.ENDED for run in self.runs)

    @property
    def lacks_baseline(self) -> bool:
        """Whether the base is still to be evaluated, or under dpo the reference to be computed."""
        return not self.base_known or (self.placement.spec.objective.type == "dpo" and self.reference is None)

    @property
    def any_unfinished(self) -> bool:
        return bool(self.unproposed) or any(run.unfinished for run in self.runs)

    @property
    def safe(self) -> bool:
        """Whether storage holds all its progress: no job has steps beyond its checkpoint, and no upload is pending."""
        return not self.checkpointing and not any(run.record.unsaved or run.stage is Stage.ENDING for run in self.runs)

    def open(
        self,
        data: DataSet,
        checkpoints: dict[int, JobProgress],
        activations: Activations,
        prompts: PromptFile | None = None,
        sharding: str | None = None,
    ) -> None:
        """Create the runs of its unfinished jobs from the loaded data, so that they can be scheduled. sharding: how its devices
        share the base, in words; None: each has a copy."""
        spec, self.data, self.prompts, self.activations = self.placement.spec, data, prompts, activations
        self._sharding = sharding
        unfinished = [assigned for assigned in self.placement.jobs if assigned.status not in JOB_TERMINAL]
        self.unproposed = {assigned.index: assigned for assigned in unfinished if not assigned.proposed}
        self.runs = [
            JobRun.of(self.key, assigned, spec, data, checkpoints.get(assigned.index), activations)
            for assigned in unfinished
            if assigned.proposed
        ]
        self._by_index = {run.index: run for run in self.runs}
        schedules = {run.index: run.schedule for run in self.runs}
        schedules |= {index: JobSchedule.of(spec, job.config, len(data.train)) for index, job in self.unproposed.items()}
        self.record(
            Attached(
                train_rows=len(data.train),
                validation_rows=len(data.validation),
                truncated_rows=data.truncated,
                skipped_rows=data.skipped,
                trend_rows=data.trend_rows,
                overlap_rows=data.overlap,
                total_steps={index: one.total_steps for index, one in schedules.items()},
                warmup_steps={index: one.warmup_steps for index, one in schedules.items()},
            )
        )

    def proposed(self, configs: Mapping[int, JobConfig]) -> list[JobRun]:
        """Configurations were chosen for these jobs of the next round: create their runs."""
        assert self.data is not None, "a round is proposed after warmups"
        made = []
        for index, config in configs.items():
            assigned = self.unproposed.pop(index).model_copy(update={"config": config})
            run = JobRun.of(self.key, assigned, self.placement.spec, self.data, None, self.activations)
            if self.reference is not None:
                run.refer(self.reference)
            steps = {"total_steps": run.schedule.total_steps, "warmup_steps": run.schedule.warmup_steps}
            self.record(JobProposed(job=index, config=config, **steps))
            made.append(run)
        self.configs |= configs
        self.runs += made
        self._by_index |= {run.index: run for run in made}
        return made

    def fail_unproposed(self, error: str) -> None:
        """No later round will be proposed."""
        failed, self.unproposed = self.unproposed, {}
        if self.all_ended:
            self.phases.training_over()
        self.record(*(JobFailed(job=index, step=0, error=error) for index in failed))

    def base_evaluated(self, loss: float, scores: RowScores | None) -> None:
        """The base alone had its full evaluation."""
        self.base_known, self.base_scores = True, scores
        self.record(BaseEvaluated(val_loss=loss, scores=scores))

    def await_base(self, awaited: bool) -> None:
        """The base is being evaluated, or no longer: the last job's end waits, since the service takes nothing after it."""
        events, self._last_end = self._last_end, [] if awaited else None
        self.record(*events or ())

    def base_texts_scored(self, scores: RowScores | None) -> None:
        """The base's texts were scored by the metric that the cut goes by; None: they could not be."""
        self.base_texts_known, self.base_text_scores = True, scores

    def report_activations(self) -> None:
        """Report how its passes hold their activations, if that has changed since the last report."""
        reason = "; ".join(filter(None, (self.activations.reason, self._sharding)))
        if self._reported_reason != reason:
            self._reported_reason = reason
            log.info("placement %s: %s", self.key, self._reported_reason)
            self.record(ActivationsChosen(recompute=self.activations.recompute, reason=self._reported_reason))

    def record(self, *events: ReportEvent) -> None:
        self.reporter.record(*events)

    # ---- a job's state changes -----------------------------------------------------------------------------------

    def started(self, run: JobRun) -> None:
        """The job got arena rows. Without a boundary ahead it is in training from its first step."""
        if run.stage is Stage.PENDING:
            run.apply(WarmupBegan())
            self.record(JobMoved(job=run.index, status=JobStatus.WARMUP, step=run.step))
        if run.stage is Stage.WARMUP and not run.before_boundary:
            run.apply(TrainingBegan())
            self.record(JobMoved(job=run.index, status=JobStatus.TRAINING, step=run.step))

    def parked(self, run: JobRun) -> None:
        """The job finished its warmup, and its rank is still open."""
        run.apply(Parked())
        self._moved(run, JobStatus.PARKED, run.warmup_val_loss)

    def promoted(self, run: JobRun) -> None:
        """The job continues past its rung; past the first, which ends its warmup, it is in training."""
        before = run.stage
        run.apply(Promoted())
        if before is not Stage.TRAINING:
            self._moved(run, JobStatus.TRAINING, None if before is Stage.PARKED else run.warmup_val_loss)

    def _moved(self, run: JobRun, status: Literal[JobStatus.PARKED, JobStatus.TRAINING], loss: float | None) -> None:
        """Record its move past warmup. loss: what it is ranked by, unless that was told before."""
        scores = run.progress.boundary_scores if loss is not None else None
        self.record(JobMoved(job=run.index, status=status, step=run.step, warmup_val_loss=loss, boundary_scores=scores))

    def ending(self, run: JobRun) -> None:
        """The job is decided; its adapter is chosen, and stored."""
        run.apply(Ending())

    def ended(self, run: JobRun, *events: ReportEvent) -> None:
        """Mark the job as ended, and record its last events: of the last job, once the base is evaluated."""
        run.apply(JobEnded())
        if self.all_ended:  # told before its last job's end: that ends the placement, and the service takes nothing after it
            self.phases.training_over()
        self.flush_throughput()
        if self.all_ended and self._last_end is not None:
            self._last_end += events
        else:
            self.record(*events)

    def kept(self, run: JobRun, closing: JobCompleted | JobExited, scores: RowScores | None, manifest: AdapterManifest) -> None:
        """The best adapter of a job that ends is stored."""
        self.ended(run, AdapterKept(job=run.index, manifest=manifest, scores=scores), closing)

    def failed(self, run: JobRun, error: str) -> None:
        self.failures[run.index] = error
        self.ended(run, JobFailed(job=run.index, step=run.step, error=error))

    def detached(self) -> None:
        """Record the placement's last event."""
        self.detaching = True
        self.phases.training_over()
        self.flush_throughput()
        self.record(Detached())

    # ---- losses --------------------------------------------------------------------------------------------------

    def trained(self, steps: Sequence[Stepped]) -> None:
        """Its jobs took these steps one after another, beside others. All is recorded at once: devices may wait for it."""
        events: list[Points] = []
        for key in dict.fromkeys(key for stepped in steps for key in stepped.losses if key.placement == self.key):
            run, taken = self[key.job], [stepped for stepped in steps if key in stepped.losses]
            events += training_points(key, run.step + 1, taken)
            run.apply(StepsTaken(tuple(stepped.losses[key] for stepped in taken), run.spec.early_exit.ema_alpha))
        self.reporter.record(*events)
        if self._attached_at is not None:
            log.info("placement %s: first optimizer step %.3f s after attach", self.key, boot_now() - self._attached_at)
            self._attached_at = None

    def validated(self, run: JobRun, result: ValidationResult) -> None:
        """The job's trend was evaluated after its last step."""
        for series, value in validation_values(result).items():
            self.reporter.point(run.index, series, run.step, value)

    # ---- throughput ----------------------------------------------------------------------------------------------

    def worked(self, seconds: float, share: float, work: Work) -> None:
        """Count a packed step of `seconds` in which this placement took part: `share` of the step, by tokens."""
        self._done.step(seconds, share, work)
        self.phases.stepped((run.warms_up for run in self.runs), seconds, work.tokens)
        # a step that counts as no device's is a report of its own: what is learned are tokens and seconds of the same steps
        if not work.device_steps or self._done.due:
            self.flush_throughput()

    def count_evaluation(self, seconds: float, tokens: int) -> None:
        """Count an evaluation of one of its jobs."""
        self.phases.evaluated(seconds, tokens)
        self._done.evaluation(seconds, tokens)

    def slowed(self, slowdown: Slowdown | None) -> None:
        """What it has been slowed of late beside others; None: it is alone, or nothing is known."""
        self._done.slowdown = slowdown

    def flush_throughput(self) -> None:
        """Record the work done since the last record."""
        if (told := self._done.take()) is not None:
            self.record(told)
