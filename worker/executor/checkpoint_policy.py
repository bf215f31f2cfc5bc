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

_STATE = 3  # tensors of one size that an adapter's state is: its weights and their two moments
_SHARE = 50  # copies take about one part in so many of the time
# of `seconds` that a task's checkpoint may be early, to be taken with those that are due: the devices stop once for all, and
# tasks that came one after another are in step from then on
_EARLY = 0.5


class CheckpointPolicy:
    """Checkpoints a task's unfinished jobs that have trained since their last one, at one moment, every `seconds`; tasks that
    train together at the same moment. Where main memory does not hold copies of all, some jobs at a time, in turn. Files that
    are needed no more are removed in the background, since that takes tens of milliseconds each."""

    def __init__(self, uploader: ArtifactUploader, cache: NodeCache, seconds: float) -> None:
        self._uploader, self._cache, self._seconds = uploader, cache, seconds
        self._rank_bytes = self._most_bytes = 0
        self._removals = BackgroundWorker("checkpoint removals")

    def expect(self, task: PlacementRun, rank_bytes: int, most_bytes: int) -> None:
        """Schedule the task's first checkpoint. rank_bytes: of one rank's weights and moments, on the base of all.
        most_bytes: of all copies until they are written, but for one that is larger alone."""
        task.checkpoint_due = boot_now() + self._seconds
        self._rank_bytes, self._most_bytes = rank_bytes, most_bytes

    def awaited(self, tasks: Iterable[PlacementRun]) -> bool:
        """Whether one of these tasks is due, and can be taken."""
        now = boot_now()
        due = [task for task in tasks if now >= task.checkpoint_due and _has_new(task)]
        return bool(due) and bool(self._fitting(min(due, key=_due)))

    def take(self, tasks: Iterable[PlacementRun], store: AdapterStore, now: bool = False) -> None:
        """Checkpoint the tasks that are due or leaving, or every task with anything new if `now`.

        The host copies are made before it returns.
        """
        began, there = boot_now(), [task for task in tasks if _has_new(task)]
        early = _EARLY * self._seconds if any(began >= task.checkpoint_due for task in there) else 0.0
        wanted = [task for task in there if now or task.leaving or began >= task.checkpoint_due - early]
        copied = list[tuple[PlacementRun, float, float]]()
        for task in sorted(wanted, key=_due):
            if not (fitting := self._fitting(task)):
                break  # it stays due, and is the next
            part = len(fitting) / len(_unsaved(task))  # so that each job has its turn within `seconds`
            copied.append((task, self._copy(task, fitting, store), part))
        ended = boot_now()
        for task, seconds, part in copied:
            # one whose copies take long puts off its own next ones, not its neighbours'
            task.checkpoint_due = ended + max(part * self._seconds, _SHARE * min(ended - began, len(copied) * seconds))

    def _fitting(self, task: PlacementRun) -> list[JobRun]:
        """Unsaved jobs of which main memory holds copies now, those with the most unsaved steps first."""
        room, found = self._most_bytes - self._uploader.copied_bytes, list[JobRun]()
        for run in _unsaved(task):
            # and each of the lowest losses' weights: read from a file, or held though others take their place
            room -= self._rank_bytes * run.job.config.rank * (_STATE + len(run.progress.lowest)) // _STATE
            if room < 0 and (found or self._uploader.copied_bytes):
                break
            found.append(run)
        return found

    def _copy(self, task: PlacementRun, runs: Sequence[JobRun], store: AdapterStore) -> float:
        """Give the uploader copies of these jobs, but for those whose weights are lost. Returns the seconds that it took."""
        began, copies = boot_now(), store.tensors(run.key for run in runs)
        there = [run for run in runs if run.key not in store.lost]
        if there:
            snapshots = [JobSnapshot(run.index, run.progress, copies[run.key]) for run in there]
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


def _due(task: PlacementRun) -> float:
    return task.checkpoint_due


def _has_new(task: PlacementRun) -> bool:
    """Whether a job has trained since the task's last checkpoint, and none is on its way."""
    return not task.checkpointing and any(run.record.unsaved for run in task.runs)


def _unsaved(task: PlacementRun) -> list[JobRun]:
    """Jobs that have trained since their last checkpoint, those with the most steps first."""
    unsaved = [run for run in task.runs if run.record.unsaved]
    return sorted(unsaved, key=lambda run: (run.checkpoint.step if run.checkpoint is not None else 0) - run.step)
