"""The placements attached to an executor, with tasks or for answers only: arrival, lease and departure. Trains nothing.

Threads prepare them, each in one of its own, so that none waits for another's rows; then the training loop opens it. One
leaves when it is done, when the service or its lease ends it, or when it cannot continue; the daemon is notified each time.
"""

import logging
from collections.abc import Callable, Sequence
from functools import partial

from contract.messages.placement_messages import AnswersOnly, Leased, Placement
from contract.messages.report_messages import PlacementFailed
from worker.adapters.job_checkpoint import CheckpointError, UnreadableWeights
from worker.api_client import FenceStale, PlacementLink, Refused
from worker.boot_clock import boot_now
from worker.data.executor_folders import ExecutorFolders
from worker.data.tokenising.file_tokeniser import DataError
from worker.data.tokenising.row_tokeniser import RowTokeniser
from worker.executor.answer_session import AnswerSession
from worker.executor.background_worker import BackgroundWorker
from worker.executor.inbox import Callback
from worker.executor.placement.placement_lease import Lease, LeaseNotHeld
from worker.executor.placement.placement_run import PlacementRun
from worker.executor.preparation.base_fetch import BaseFetch
from worker.executor.preparation.executor_base import ExecutorBase
from worker.executor.preparation.first_weights import DrawnBytes
from worker.executor.preparation.object_fetch import DamagedObject
from worker.executor.preparation.placement_preparation import CannotTrain, Preparation, Prepared, capacities_of
from worker.executor.preparation.resumed_files import ResumedFiles
from worker.executor.reporter import Reporter
from worker.pipe_messages import Attach, Detach, ExecutorProgress, Phase, PlacementEnded, Renew, Serve
from worker.policy.adapter_memory_model import Capacity
from worker.policy.job_record import JobKey
from worker.replicas.base_loader import BaseError, Crowded
from worker.replicas.ranks.placement_devices import PlacementDevices, devices_of
from worker.replicas.ranks.rank_group import LoadedBase
from worker.replicas.sharding_choice import Wanted
from worker.settings import Settings

log = logging.getLogger(__name__)

Send = Callable[[ExecutorProgress | PlacementEnded], None]
_REPORT_SECONDS = 0.5
_SILENT_SECONDS = 10.0  # without a word from a rank, after which it is not waited for without a lease


class AttachedPlacements:
    """`hand_over` queues a callback for the training loop, which calls `opened`, `loaded` (for answers only) and `left`; `send`
    sends to the daemon."""

    def __init__(
        self,
        settings: Settings,
        link: PlacementLink,
        folders: ExecutorFolders,
        hand_over: Callable[[Callback], None],
        send: Send,
        opened: Callable[[PlacementRun, Prepared], None],
        loaded: Callable[[LoadedBase, Sequence[Capacity]], object],
        left: Callable[[PlacementRun], None],
    ) -> None:
        self._settings, self._link, self._folders = settings, link, folders
        self._hand_over, self._send, self._opened, self._left = hand_over, send, opened, left
        self._loaded_for_answers = loaded
        self._worker = BackgroundWorker("preparations", at_once=None)
        self._tokeniser, self._drawn = RowTokeniser(), DrawnBytes()  # of all preparations
        fetch = BaseFetch(settings, link, folders.cache, lambda: hand_over(partial(self.progress, now=True)))
        self._base = ExecutorBase(settings, fetch, self._check_leases)
        self._tasks: dict[str, PlacementRun] = {}
        self._sessions: dict[str, AnswerSession] = {}
        self._leases: dict[str, Lease] = {}
        self._reported_at = 0.0

    @property
    def tasks(self) -> list[PlacementRun]:
        """All attached placements, prepared or not."""
        return list(self._tasks.values())

    @property
    def empty(self) -> bool:
        """Whether nothing is attached, so that another base may take the memory."""
        return not self._tasks and not self._sessions

    @property
    def open(self) -> list[PlacementRun]:
        """The placements whose data is loaded."""
        return [task for task in self._tasks.values() if task.data is not None]

    @property
    def training(self) -> list[PlacementRun]:
        """The placements whose jobs can be scheduled."""
        return [task for task in self.open if not task.leaving]

    @property
    def serving_lease(self) -> Lease | None:
        """Of a placement under which completions can be answered: it is open, and stays. A task's before one for answers
        only."""
        staying = (task.lease for task in self.training if not task.detaching and not task.all_ended)
        asked = (session.lease for session in self._sessions.values() if session.open)
        return next(staying, None) or next(asked, None)

    def __getitem__(self, key: str) -> PlacementRun:
        return self._tasks[key]

    # ---- arrival ---------------------------------------------------------------------------------------------------

    def lease(self, message: Attach | Serve) -> Lease:
        """Create the lease of a placement that is about to attach. From any thread, so that renewals find it from the start."""
        placement, key = message.placement, message.placement.placement_id
        lease = self._leases[key] = Lease(key, placement.fence, placement.token, message.deadline)
        return lease

    def attach(self, placement: Leased, lease: Lease, sent_at: float) -> None:
        """Prepare the placement, which the daemon sent at that moment (epoch seconds)."""
        if isinstance(placement, Placement):
            self._attach_task(placement, lease, sent_at)
        elif isinstance(placement, AnswersOnly):
            session = self._sessions[placement.placement_id] = AnswerSession(placement, lease)
            self.progress(now=True)
            self._worker.submit(partial(self._prepare_answers, session, devices_of(placement.device_indexes, self._settings)))

    def _attach_task(self, placement: Placement, lease: Lease, sent_at: float) -> None:
        task = PlacementRun(
            placement, lease, Reporter(self._link, lease, placement.next_seq, partial(self._on_end, lease.placement_id))
        )
        others = [other for other in self._tasks.values() if _needs(other.placement) != _needs(placement)]
        self._tasks[task.key] = task
        task.phases.over("start executor", sent_at)
        if others:
            held = others[0].placement
            self.leave(task, True, f"the executor still holds base {held.base.name} on devices {sorted(held.device_indexes)}")
            return
        self.progress(now=True)
        self._worker.submit(partial(self._prepare, task, devices_of(placement.device_indexes, self._settings)))

    def on_lost(self, key: JobKey, why: str) -> None:
        """This node's disk does not give back what a job needs: its task leaves, and goes on from its checkpoints."""
        self._hand_over(partial(self._leave, key.placement, True, f"{key}: {why}", by_node=True))

    def _on_end(self, key: str, lost: bool, detail: str) -> None:
        """A reporter's thread calls this when its placement has ended."""
        self._hand_over(partial(self._leave, key, lost, detail))

    def renew(self, message: Renew) -> None:
        """Extend a lease. From any thread, so that a lease renewed during a long step stays valid."""
        if (lease := self._leases.get(message.placement_id)) is not None:
            lease.renew(message.deadline, message.token)

    def _prepare(self, task: PlacementRun, devices: PlacementDevices) -> None:
        """Runs in the placement's thread."""
        placement, shared = task.placement, (self._settings, self._tokeniser, self._drawn)
        try:
            preparation = Preparation(self._link, self._folders, placement, task.lease, task.phases, *shared)
            prepared = preparation.prepare(self._base, devices)
        except (CannotTrain, BaseError, DataError, CheckpointError, DamagedObject) as error:
            then = partial(self._fail, task, str(error))
        except (Crowded, UnreadableWeights) as error:
            then = partial(self.leave, task, True, str(error), isinstance(error, UnreadableWeights))
        except FenceStale:
            then = partial(self.leave, task, False, "the service has ended it")
        except LeaseNotHeld:
            then = partial(self.leave, task, True, "its lease ended while it was prepared")
        except Refused as error:
            then = partial(self.leave, task, True, f"the service does not serve what it needs: {error}")
        else:
            then = partial(self._open, task, prepared)
        self._hand_over(then)  # an error's traceback is gone by now, and with it what it held of the base

    def _prepare_answers(self, session: AnswerSession, devices: PlacementDevices) -> None:
        """Runs in the placement's thread."""
        key = session.lease.placement_id
        try:
            with self._base.use(session.placement.base, devices, session.lease, Wanted(generates=True)) as used:
                used.await_revision()
                used.await_kernels()
                with used.turn():
                    capacities = capacities_of(used.loaded, self._settings, self._folders.scratch)
        except (CannotTrain, BaseError, Crowded, LeaseNotHeld, Refused) as error:
            self._hand_over(partial(self._leave, key, True, str(error)))
        else:
            self._hand_over(partial(self._open_answers, key, used.loaded, capacities))

    def _open_answers(self, key: str, loaded: LoadedBase, capacities: Sequence[Capacity]) -> None:
        if (session := self._sessions.get(key)) is not None:
            self._loaded_for_answers(loaded, capacities)
            session.open = True
            self.progress(now=True)

    def _check_leases(self, silent: float) -> None:
        """A rank has said nothing for so many seconds: raises LeaseNotHeld where no placement may wait for it any more, which
        ends the executor."""
        if silent >= _SILENT_SECONDS and not any(lease.holds() for lease in list(self._leases.values())):
            raise LeaseNotHeld(f"a rank has said nothing for {silent:.0f} s, and no placement has a lease")

    def _open(self, task: PlacementRun, prepared: Prepared) -> None:
        if task.key in self._tasks and not task.detaching:
            checkpoints = {index: progress for index, (_, progress) in prepared.checkpoints.items()}
            task.open(prepared.data, checkpoints, prepared.activations, prepared.prompts, prepared.loaded.sentence)
            self._opened(task, prepared)
            self.progress(now=True)
        else:
            ResumedFiles(self._folders.own, task.placement).drop()
            self._worker.submit(partial(self._base.close_streams, task.key))  # another may be loading a base, or calling a rank

    # ---- departure -------------------------------------------------------------------------------------------------

    def finish(self, task: PlacementRun) -> None:
        """Detach the placement once the service has acknowledged all its events."""
        task.detached()
        task.reporter.finish(lambda: self._hand_over(partial(self.leave, task, False, "done")))

    def _fail(self, task: PlacementRun, error: str) -> None:
        if task.key in self._tasks and not task.detaching:
            log.error("placement %s cannot go on: %s", task.key, error)
            task.record(PlacementFailed(error=error[:2000]))
            task.reporter.finish(lambda: self._hand_over(partial(self.leave, task, False, error)))

    def detach(self, message: Detach) -> None:
        """Drop a placement at once, or with `keep` stop training it; one still in preparation has nothing to checkpoint."""
        task = self._tasks.get(message.placement_id)
        if not message.keep or message.placement_id in self._sessions:
            self._leave(message.placement_id, False, "the service has ended it")
        elif task is not None and not task.detaching:
            log.info("placement %s was asked to leave", task.key)
            task.leaving = True
            if task.data is None:
                self.finish(task)

    def drain(self, deadline: float) -> None:
        """Tell the service all that happened, as far as that is possible until `deadline`."""
        for task in self.open:
            task.flush_throughput()
            task.reporter.drain(max(0.0, deadline - boot_now()))

    @property
    def expires(self) -> bool:
        """Whether `expire` has anything to drop."""
        return not all(lease.holds() for lease in self._own_leases)

    @property
    def _own_leases(self) -> list[Lease]:
        return [*(task.lease for task in self._tasks.values()), *(one.lease for one in self._sessions.values())]

    def expire(self) -> None:
        """Drop placements whose lease ran out."""
        for task in self.tasks:
            if not task.lease.holds():
                self.leave(task, True, "its lease ended")
        for key, session in list(self._sessions.items()):
            if not session.lease.holds():
                self._leave(key, True, "its lease ended")

    def _leave(self, key: str, lost: bool, detail: str, by_node: bool = False) -> None:
        if key in self._tasks:
            self.leave(self._tasks[key], lost, detail, by_node)
        elif (session := self._sessions.pop(key, None)) is not None:
            session.lease.release()  # ends a download for it
            log.info("nobody is answered under %s any more: %s", key, detail)
            del self._leases[key]
            self._send(PlacementEnded(placement_id=key, lost=lost, detail=detail[:2000]))

    def leave(self, task: PlacementRun, lost: bool, detail: str, by_node: bool = False) -> None:
        """Remove the placement and notify the daemon. `lost`, `by_node`: see PlacementEnded."""
        if self._tasks.pop(task.key, None) is None:
            return
        log.info("placement %s leaves: %s", task.key, detail)
        del self._leases[task.key]
        task.reporter.close()
        self._left(task)
        self._send(PlacementEnded(placement_id=task.key, lost=lost, by_node=by_node, detail=detail[:2000]))

    def close(self) -> None:
        """End the other ranks, and the processes that read rows."""
        self._base.close()
        self._tokeniser.close()

    # ---- progress --------------------------------------------------------------------------------------------------

    def progress(self, now: bool = False) -> None:
        """Report progress to the daemon, at most every _REPORT_SECONDS unless `now`."""
        at = boot_now()
        if now or at - self._reported_at >= _REPORT_SECONDS:
            self._reported_at = at
            leases = self._own_leases
            waits = {lease.placement_id: why for lease in leases if (why := lease.waits_for) is not None}
            loading = {lease.placement_id: how for lease in leases if (how := lease.loading) is not None}
            phases = {task.key: _phase(task) for task in self.tasks}
            phases |= {key: one.phase for key, one in self._sessions.items()}
            self._send(ExecutorProgress(phases=phases, waits=waits, loading=loading, at=at))


def _needs(placement: Placement) -> tuple[object, frozenset[int]]:
    """What placements that share an executor must have in common."""
    return placement.base.identity, frozenset(placement.device_indexes)


def _phase(task: PlacementRun) -> Phase:
    if task.data is None:
        return "loading"
    return "detaching" if task.leaving else "training"
