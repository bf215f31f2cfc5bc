"""When an executor's jobs are checkpointed, and which checkpoint replaces which. The loop makes the host copies; the uploader
does the rest in the background."""

import queue
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from contract.messages.placement_messages import CheckpointRef
from contract.messages.report_messages import Checkpointed
from worker.adapters.tiered_adapter_store import AdapterStore
from worker.boot_clock import boot_now
from worker.data.node_cache import NodeCache
from worker.executor.artifact_uploader import ArtifactUploader, JobSnapshot
from worker.executor.placement.job_run import JobRun
from worker.executor.placement.placement_run import PlacementRun
from worker.policy.job_record import CheckpointKnown

_SHARE = 50  # copies take at most one part in so many of the time


class CheckpointPolicy:
    """Checkpoints a task's unfinished jobs that have trained since their last one, at one moment, every `seconds`."""

    def __init__(self, uploader: ArtifactUploader, cache: NodeCache, seconds: float) -> None:
        self._uploader, self._cache, self._seconds = uploader, cache, seconds

    def expect(self, task: PlacementRun) -> None:
        """Schedule the task's first checkpoint."""
        task.checkpoint_due = boot_now() + self._seconds

    def awaited(self, tasks: Iterable[PlacementRun]) -> bool:
        """Whether one of these tasks is due."""
        now = boot_now()
        return any(not task.checkpointing and now >= task.checkpoint_due for task in tasks)

    def take(self, tasks: Iterable[PlacementRun], store: AdapterStore, now: bool = False) -> None:
        """Checkpoint the tasks that are due or leaving, or every task with anything new if `now`.

        The host copies are made before it returns.
        """
        for task in tasks:
            began = boot_now()
            if task.checkpointing or not (now or task.leaving or began >= task.checkpoint_due):
                continue
            unsaved = [run for run in task.runs if run.record.unsaved]
            copies = store.tensors(run.key for run in unsaved)
            snapshots = [JobSnapshot(run.index, run.progress, copies[run.key]) for run in unsaved]
            ended = boot_now()
            task.checkpoint_due = ended + max(self._seconds, _SHARE * (ended - began))
            if snapshots:
                task.checkpointing = True
                self._uploader.keep_checkpoint(task, snapshots, partial(self._stored, task))

    def take_last(
        self,
        tasks: Callable[[], Sequence[PlacementRun]],
        store: AdapterStore,
        inbox: "queue.SimpleQueue[Callable[[], None]]",
        deadline: float,
    ) -> None:
        """Checkpoint every task with anything new until all are stored, and the adapters of jobs that ended before,
        running the loop's callbacks meanwhile."""
        while True:
            self.take(tasks(), store, now=True)
            if not self._uploader.adapters_left and not any(task.checkpointing for task in tasks()):
                return
            try:
                inbox.get(timeout=max(0.0, deadline - boot_now()))()
            except queue.Empty:
                return

    def _stored(self, task: PlacementRun, made: dict[int, CheckpointRef]) -> None:
        """Record a stored checkpoint, after its jobs' earlier events, and drop the one it replaces. Skips jobs that ended
        meanwhile."""
        task.checkpointing = False
        runs = {run.index: run for run in task.runs if run.unfinished and run.index in made}
        if runs:
            task.record(Checkpointed(jobs={index: made[index] for index in runs}))
        for index, ref in made.items():
            replaced = runs[index].checkpoint if index in runs else ref
            if replaced is not None:
                self._cache.objects(task.placement.tenant_id).drop(replaced.sha256)
            if index in runs:
                runs[index].apply(CheckpointKnown(ref))

    def forget(self, task: PlacementRun, run: JobRun) -> None:
        """Drop the local copy of a job's checkpoint: the job has ended or left."""
        if run.checkpoint is not None:
            self._cache.objects(task.placement.tenant_id).drop(run.checkpoint.sha256)
