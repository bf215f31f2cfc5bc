"""When an executor's jobs are checkpointed, and which checkpoint replaces which. The loop makes the host copies; the uploader
does the rest in the background."""

import contextlib
import queue
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from contract.messages.placement_messages import CheckpointRef
from contract.messages.report_messages import Checkpointed
from worker.adapters.tiered_adapter_store import AdapterStore
from worker.boot_clock import boot_now
from worker.data.node_cache import NodeCache
from worker.executor.artifact_uploader import ArtifactUploader, JobSnapshot
from worker.executor.background_worker import BackgroundWorker
from worker.executor.inbox import Inbox
from worker.executor.placement.job_run import JobRun
from worker.executor.placement.placement_run import PlacementRun
from worker.policy.job_record import CheckpointKnown

_SHARE = 50  # copies take about one part in so many of the time
# of `seconds` that a task's checkpoint may be early, to be taken with those that are due: the devices stop once for all, and
# tasks that came one after another are in step from then on
_EARLY = 0.5


class CheckpointPolicy:
    """Checkpoints a task's unfinished jobs that have trained since their last one, at one moment, every `seconds`; tasks that
    train together at the same moment. Files that are needed no more are removed in the background, since that takes tens of
    milliseconds each."""

    def __init__(self, uploader: ArtifactUploader, cache: NodeCache, seconds: float) -> None:
        self._uploader, self._cache, self._seconds = uploader, cache, seconds
        self._removals = BackgroundWorker("checkpoint removals")

    def expect(self, task: PlacementRun) -> None:
        """Schedule the task's first checkpoint."""
        task.checkpoint_due = boot_now() + self._seconds

    def awaited(self, tasks: Iterable[PlacementRun]) -> bool:
        """Whether one of these tasks is due."""
        now = boot_now()
        return any(now >= task.checkpoint_due and _has_new(task) for task in tasks)

    def take(self, tasks: Iterable[PlacementRun], store: AdapterStore, now: bool = False) -> None:
        """Checkpoint the tasks that are due or leaving, or every task with anything new if `now`.

        The host copies are made before it returns.
        """
        began, there = boot_now(), [task for task in tasks if _has_new(task)]
        early = _EARLY * self._seconds if any(began >= task.checkpoint_due for task in there) else 0.0
        wanted = [task for task in there if now or task.leaving or began >= task.checkpoint_due - early]
        copying = [self._copy(task, store) for task in wanted]
        ended = boot_now()
        for task, seconds in zip(wanted, copying, strict=True):
            # one whose copies take long puts off its own next ones, not its neighbours'
            task.checkpoint_due = ended + max(self._seconds, _SHARE * min(ended - began, len(wanted) * seconds))

    def _copy(self, task: PlacementRun, store: AdapterStore) -> float:
        """Give the uploader copies of the task's unsaved jobs. Returns the seconds that it took."""
        began, unsaved = boot_now(), [run for run in task.runs if run.record.unsaved]
        copies = store.tensors(run.key for run in unsaved)
        snapshots = [JobSnapshot(run.index, run.progress, copies[run.key]) for run in unsaved]
        task.checkpointing = True
        self._uploader.keep_checkpoint(task, snapshots, partial(self._stored, task))
        return boot_now() - began

    def take_last(
        self,
        tasks: Callable[[], Sequence[PlacementRun]],
        store: AdapterStore,
        inbox: Inbox,
        deadline: float,
    ) -> None:
        """Checkpoint every task with anything new until all are stored, and the adapters of jobs that ended before,
        running the loop's callbacks meanwhile."""
        with contextlib.suppress(queue.Empty):
            self.take(tasks(), store, now=True)
            while self._uploader.adapters_left or any(task.checkpointing for task in tasks()):
                inbox.get(timeout=max(0.0, deadline - boot_now()))()
                self.take(tasks(), store, now=True)

    def drain(self, deadline: float) -> None:
        """Wait until files that are needed no more are removed, as far as that is possible until `deadline`."""
        self._removals.drain(max(0.0, deadline - boot_now()))

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
                self._remove(task, replaced)
            if index in runs:
                runs[index].apply(CheckpointKnown(ref))

    def forget(self, task: PlacementRun, run: JobRun) -> None:
        """Drop the local copy of a job's checkpoint: the job has ended or left."""
        if run.checkpoint is not None:
            self._remove(task, run.checkpoint)

    def _remove(self, task: PlacementRun, checkpoint: CheckpointRef) -> None:
        self._removals.submit(partial(self._cache.drop_object, task.placement.tenant_id, checkpoint.sha256))


def _has_new(task: PlacementRun) -> bool:
    """Whether a job has trained since the task's last checkpoint, and none is on its way."""
    return not task.checkpointing and any(run.record.unsaved for run in task.runs)
