"""An executor inside the test's own process, against a fleet API over real HTTP."""

import json
import queue
import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

from contract.messages.placement_messages import Placement
from contract.messages.report_messages import Attached, Report
from contract.states import JOB_TERMINAL, JobStatus
from tests.worker.fleet import JOIN_TOKEN, Fleet
from tests.worker.reported import Reported
from worker.api_client import PlacementLink
from worker.boot_clock import boot_now
from worker.data.object_cache import OBJECTS
from worker.executor.placement.placement_run import PlacementRun
from worker.executor.training_loop import Executor
from worker.pipe_messages import Attach, ExecutorProgress, PlacementEnded, Stop
from worker.replicas.replica_set import Replicas
from worker.settings import Settings

_PATIENCE, _LOOK = 120.0, 0.05  # seconds


class PacedExecutor(Executor):
    """Takes no step before the fleet has heard of all that the one before brought about, and has the checkpoint that was taken
    after it: what a report brings about comes at its step, however fast or slow the machine is. between_steps: called then."""

    def __init__(self, fleet: Fleet, between_steps: Callable[[], None], *parts: Any) -> None:
        super().__init__(*parts)
        self.fleet, self.between_steps = fleet, between_steps

    def _iterate(self, replicas: Replicas) -> None:
        super()._iterate(replicas)
        for task in self._attached.open:
            self._await_reports(task, self.fleet.reported[task.key])
        self.between_steps()

    def _await_reports(self, task: PlacementRun, told: Reported) -> None:
        until = time.monotonic() + _PATIENCE
        while told.live and task in self._attached.open and task.lease.holds():
            if not task.checkpointing and task.reporter.drain(_LOOK):
                return
            with suppress(queue.Empty):
                self._inbox.get(timeout=_LOOK)()
            assert time.monotonic() < until, "the fleet does not hear of the step"


def begin_together(executor: Executor, placements: int) -> None:
    """Have it take no step before so many placements are prepared."""
    iterate = executor._iterate

    def wait(replicas: Replicas) -> None:
        if len(executor._attached.open) < placements:
            executor._inbox.get(timeout=_PATIENCE)()
        else:
            executor._iterate = iterate  # type: ignore[method-assign]
            iterate(replicas)

    executor._iterate = wait  # type: ignore[method-assign]


class Inside:
    """Runs placements to their ends; `news` is what the daemon would have been told. profiles: a folder of the memory profiles
    that nodes of this machine measured, which those here know and add to; None: each measures for itself."""

    profiles: ClassVar[Path | None] = None

    def __init__(self, fleet: Fleet, folder: Path, **settings: Any) -> None:
        self.fleet = fleet
        self.news: list[ExecutorProgress | PlacementEnded] = []
        self.on_news: Callable[[ExecutorProgress | PlacementEnded], None] = lambda news: None
        self.between_steps: Callable[[], None] = lambda: None  # of an executor that is paced
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
        after: int | Callable[[], bool] = 2,
        paced: bool = False,
        together: bool = False,
    ) -> list[Reported]:
        """Attach them all to one executor and run until every one has ended. joining: these come once any of the others has
        reported `after` steps, or at a report when `after` holds. paced: see PacedExecutor. together: no step is taken before
        all but these are prepared."""
        reported = [self.fleet.place(placement) for placement in (*placements, *joining)]
        left = {placement.placement_id for placement in (*placements, *joining)}
        late, watch = list(joining), self.fleet.on_report

        def join(told: Reported, report: Report) -> None:
            watch(told, report)
            while late and (after() if callable(after) else max(told.step.values()) >= after):
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
            executor = PacedExecutor(self.fleet, self.between_steps, *parts) if paced else Executor(*parts)
            for placement in placements:
                attach(placement)
            if together:
                begin_together(executor, len(placements))
            prepare(executor)
            self._copy_profiles(self.profiles, self._objects)
            executor.run()
            self._copy_profiles(self._objects, self.profiles)
        if joining:
            self.fleet.on_report = watch
        return reported

    @property
    def _objects(self) -> Path:
        """What belongs to bases alone, profiles among it."""
        return self.settings.scratch / OBJECTS

    def _copy_profiles(self, there: Path | None, here: Path | None) -> None:
        if there is None or here is None:
            return
        for path in there.glob("[0-9a-f]*"):  # none that is still being written
            said = json.loads(path.read_text())
            if isinstance(said, dict) and said.keys() == {"kept", "recomputed"}:
                shutil.copy(path, here)

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
                    "config": reported.proposed[job.index] or job.config,
                    "proposed": reported.proposed[job.index] is not None,
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
