"""An executor inside the test's own process, against a fleet API over real HTTP."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from contract.messages.placement_messages import Placement
from contract.messages.report_messages import Attached, Report
from contract.states import JOB_TERMINAL, JobStatus
from tests.worker.fleet import JOIN_TOKEN, Fleet
from tests.worker.reported import Reported
from worker.api_client import PlacementLink
from worker.boot_clock import boot_now
from worker.executor.placement_run import PlacementRun
from worker.executor.training_loop import Executor
from worker.pipe_messages import Attach, ExecutorProgress, PlacementEnded, Stop
from worker.replicas.replica_set import Replicas
from worker.settings import Settings


class PacedExecutor(Executor):
    """Takes no step before the fleet has heard of the one before: what a report brings about comes at its step, however slow
    the machine is."""

    def __init__(self, fleet: Fleet, *parts: Any) -> None:
        super().__init__(*parts)
        self.fleet = fleet

    def _iterate(self, replicas: Replicas) -> None:
        super()._iterate(replicas)
        for task in self._attached.open:
            task.reporter.drain(0)  # else points are gathered for a while
            told = self.fleet.reported[task.key]
            self.fleet.until(lambda task=task, told=told: not told.live or heard(task, told))


def heard(task: PlacementRun, told: Reported) -> bool:
    """Whether all its jobs' steps were reported."""
    return all(told.step[run.index] >= run.step for run in task.runs)


class Inside:
    """Runs placements to their ends; `news` is what the daemon would have been told."""

    def __init__(self, fleet: Fleet, folder: Path, **settings: Any) -> None:
        self.fleet = fleet
        self.news: list[ExecutorProgress | PlacementEnded] = []
        self.on_news: Callable[[ExecutorProgress | PlacementEnded], None] = lambda news: None
        self.settings = Settings(
            api_url=fleet.url,
            join_token=JOIN_TOKEN,
            worker_dir=folder,
            worker_threads=1,
            **{"worker_device": "cpu", "worker_checkpoint_seconds": 3600, "worker_step_tokens": 4096, **settings},
        )

    def run(
        self,
        *placements: Placement,
        prepare: Callable[[Executor], None] = lambda executor: None,
        joining: Sequence[Placement] = (),
        after: int = 2,
        paced: bool = False,
    ) -> list[Reported]:
        """Attach them all to one executor and run until every one has ended. joining: these come once any of the others has
        reported `after` steps. paced: see PacedExecutor."""
        reported = [self.fleet.place(placement) for placement in (*placements, *joining)]
        left = {placement.placement_id for placement in (*placements, *joining)}
        late, watch = list(joining), self.fleet.on_report

        def join(told: Reported, report: Report) -> None:
            watch(told, report)
            while late and max(told.step.values()) >= after:
                attach(late.pop(0))

        def attach(placement: Placement) -> None:
            executor.handle_command(Attach(placement=placement, deadline=boot_now() + placement.lease_seconds))

        if joining:
            self.fleet.on_report = join

        def tell(news: ExecutorProgress | PlacementEnded) -> None:
            self.news.append(news)
            self.on_news(news)
            if isinstance(news, PlacementEnded):
                left.discard(news.placement_id)
                if not left:
                    executor.handle_command(Stop(seconds=0))

        with PlacementLink(self.fleet.url) as link:
            parts = (self.settings, link, tell)
            executor = PacedExecutor(self.fleet, *parts) if paced else Executor(*parts)
            for placement in placements:
                attach(placement)
            prepare(executor)
            executor.run()
        if joining:
            self.fleet.on_report = watch
        return reported

    @property
    def ended(self) -> list[PlacementEnded]:
        return [news for news in self.news if isinstance(news, PlacementEnded)]


def resumed(reported: Reported, key: str, base_val_loss: float | None = None) -> Placement:
    """The task placed anew after its placement was lost: what the service makes of what it was told."""
    warmup = reported.of(Attached)
    jobs = []
    for job in reported.placement.jobs:
        checkpoint = reported.checkpoints.get(job.index)
        loss, scores = reported.warmup_losses.get(job.index), reported.boundary_scores.get(job.index)
        promoted = job.index in reported.promoted
        status = reported.status[job.index]
        if status not in JOB_TERMINAL:
            if checkpoint is None:
                status = JobStatus.PENDING
            elif promoted:
                status = JobStatus.TRAINING
            else:
                at_boundary = loss is not None and bool(warmup) and checkpoint.step >= warmup[0].warmup_steps[job.index]
                status = JobStatus.PARKED if at_boundary else JobStatus.WARMUP
            if status in (JobStatus.PENDING, JobStatus.WARMUP) and not promoted:
                loss = scores = None
        jobs.append(
            job.model_copy(
                update={
                    "status": status,
                    "promoted": promoted,
                    "warmup_val_loss": loss,
                    "boundary_scores": scores,
                    "checkpoint": checkpoint,
                    "milestone": reported.milestones[job.index],
                    "boundary_text_scores": reported.text_scores[job.index],
                }
            )
        )
    evaluated, scores = reported.base_texts
    base = {"base_val_loss": base_val_loss, "base_texts_evaluated": evaluated, "base_text_scores": scores}
    return reported.placement.model_copy(
        update={"placement_id": key, "fence": 2, "token": f"token-{key}", "jobs": jobs, **base}
    )
