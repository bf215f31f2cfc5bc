"""Jobs that are decided: each waits for its weights at its lowest losses, which a thread reads back while others step, then its
adapter is chosen, its rows are freed, and its end is recorded. Decides nothing."""

from collections import deque
from collections.abc import Callable
from functools import partial

from worker.boot_clock import boot_now
from worker.executor.artifact_uploader import ArtifactUploader, BestAdapter
from worker.executor.attached_placements import AttachedPlacements
from worker.executor.evaluation.job_evaluations import JobEvaluations, takes_lowest
from worker.executor.evaluation.text_scoring import TextEvaluations
from worker.executor.placement.job_run import JobRun
from worker.executor.placement.placement_run import PlacementRun
from worker.policy.early_exit.policy_interface import Verdict
from worker.policy.job_record import keeps_adapter
from worker.replicas.replica_set import Replicas


class JobEndings:
    """free: frees what a job holds that has ended. One job is read at a time, and the next while the one before is evaluated,
    so that main memory holds the weights of two at most."""

    def __init__(
        self,
        attached: AttachedPlacements,
        evaluations: JobEvaluations,
        texts: TextEvaluations,
        uploader: ArtifactUploader,
        free: Callable[[Replicas, PlacementRun, JobRun], None],
    ) -> None:
        self._attached, self._evaluations, self._texts = attached, evaluations, texts
        self._uploader, self._free = uploader, free
        self._waiting: deque[tuple[JobRun, Verdict | None]] = deque()
        self._read: JobRun | None = None  # the last of which weights were asked for

    def __bool__(self) -> bool:
        """Whether jobs wait for their weights."""
        return bool(self._waiting)

    def __contains__(self, task: PlacementRun) -> bool:
        return any(run.key.placement == task.key for run, _ in self._waiting)

    def begin(self, replicas: Replicas, run: JobRun, verdict: Verdict | None) -> None:
        """The job is decided (None: it completed): it takes no step and no checkpoint from now on. It ends now, or by `advance`
        where its adapter is one of the weights at its lowest losses, or their mean."""
        self._attached[run.key.placement].ending(run)
        if takes_lowest(run, verdict) and replicas.store.trains_on(run.key) is not None:
            self._waiting.append((run, verdict))
            self._read_first(replicas)
        else:
            self._end(replicas, run, verdict)

    def advance(self, replicas: Replicas, alone: bool) -> None:
        """End the jobs whose weights are read. alone: nobody steps, so those of the first are waited for."""
        self._read_first(replicas)
        while self._waiting and (alone or replicas.store.lowest_read(self._waiting[0][0].key)):
            run, verdict = self._waiting.popleft()
            self._read_first(replicas)
            self._end(replicas, run, verdict)
            alone = False

    def finish(self, replicas: Replicas, deadline: float) -> None:
        """End those that wait, as far as that is possible until `deadline`. Others begin anew from their checkpoints."""
        while self._waiting and boot_now() < deadline:
            self.advance(replicas, alone=True)

    def drop(self, task: PlacementRun) -> None:
        """The task leaves: its next placement goes on from checkpoints."""
        self._waiting = deque(one for one in self._waiting if one[0].key.placement != task.key)

    def drop_job(self, run: JobRun) -> None:
        """The job failed."""
        self._waiting = deque(one for one in self._waiting if one[0] is not run)

    def _read_first(self, replicas: Replicas) -> None:
        if self._waiting and self._read is not (run := self._waiting[0][0]):
            self._read = run
            replicas.store.read_lowest(run.key, len(run.progress.lowest))

    def _end(self, replicas: Replicas, run: JobRun, verdict: Verdict | None) -> None:
        """Frees the job's rows. Records its end once texts are scored and its adapter is stored."""
        task, rows = self._attached[run.key.placement], replicas.store.row_range(run.key)
        settled = self._evaluations.settle_best(replicas, run, verdict)  # replaces run.best, which is read below
        closing = run.completed_event() if verdict is None else run.exited_event(verdict)
        self._free(replicas, task, run)
        if keeps_adapter(verdict, run.best) and settled.weights is not None:
            best = BestAdapter(run, replicas.base, replicas.store.keep_apart(settled.weights), rows, settled.averaged)
            keep = partial(self._uploader.keep_adapter, task, best, partial(task.kept, run, closing, settled.scores))
            self._texts.ask(replicas, task, run, best.weights, keep)
        elif not settled.lost:  # else its task leaves
            self._texts.after(run, partial(task.ended, run, closing))
