"""The node's daemon: reconciles the running executors with the desired state. Trains nothing and imports no torch.

One loop owns all state. Threads (the service's answers, Redis wake-ups, the children's pipes) only put events into its queue;
the loop never waits for a network or a child. Each fetch brings the whole desired state: level-triggered, not edge-triggered.
"""

import logging
import queue
import signal
from typing import Any

from contract.messages.node_messages import PlacementsLost
from contract.messages.placement_messages import Leased, MergeWork
from contract.states import RequeueReason
from worker.api_client import NodeLink
from worker.boot_clock import boot_now
from worker.node.attach_commands import attach_command
from worker.node.child_process import AnyChild, ChildEnded, ChildMessage
from worker.node.desired_state_poller import Desired, NodeForgotten
from worker.node.executor_pool import ExecutorPool, ExecutorProcess
from worker.node.liveness_file import LivenessFile
from worker.node.node_credential import NodeCredential
from worker.node.node_hosts import HostLost, NodeHosts
from worker.node.node_registration import NodeMembership, join
from worker.node.preemption_notice import PreemptionNotice
from worker.node.wanted_placements import Wanted, wanted_of
from worker.pipe_messages import Detach, ExecutorProgress, HeartbeatResult, PlacementEnded, Pulses, Renew, UnknownNode
from worker.settings import Settings

log = logging.getLogger(__name__)

_DETACH_SECONDS = 10.0  # an executor that holds the placement for longer is killed
_STOP_GRACE = 2.0  # after the settings' stop seconds, executors are killed
_PREEMPTED_SECONDS = 600.0  # a machine that was to be taken away and is still there: the worker ends, to be started again
_LOOK_SECONDS = 5.0  # at least so often the loop turns, and says that it lives

_STOP = object()


class Daemon:
    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._alive = LivenessFile(settings.liveness_file)
        self._inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._link = NodeLink(settings.api_url)
        self._credential = NodeCredential(settings.scratch)
        self._hosts = NodeHosts(settings, self._inbox.put)
        self._pool = ExecutorPool(settings, self._hosts, self._inbox.put)
        self._notice = PreemptionNotice(settings.preemption_notice, lambda: self._inbox.put(None))
        self._asked_to_end = False
        self._host_lost: str | None = None  # why the node ends, where a host of it is lost
        self._wanted: Wanted = {}
        self._over: set[tuple[str, int]] = set()  # identities that ended here, though an older answer may still list them
        self._version = -1
        self._applied: tuple[int, float] | None = None  # version of the last applied desired state, and when

    def run(self) -> int:
        """Serve until SIGTERM or SIGINT, or a host is lost. Returns the exit code. Raises SettingsError if the node is refused.

        After a preemption notice it gives back what runs and waits for its end: started again, it would be given more.
        """
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self._inbox.put(_STOP))
        try:
            joined = self._hosts.join(self._stop_requested)
            self._pool.maintain(boot_now())  # an executor imports torch while we join
            while joined and (member := self._join()) is not None and self._serve(member):
                member.close()
                self._pool.kill()
                self._wanted.clear()
                self._over.clear()
            if self._notice.given and not self._asked_to_end:
                self._stop_requested(_PREEMPTED_SECONDS)
        finally:
            self._pool.kill()
            deadline = boot_now() + _STOP_GRACE
            while self._pool.executors and (left := deadline - boot_now()) > 0:  # whoever starts next wants their devices
                if isinstance(event := self._next(left), ChildEnded):
                    self._reap(event.child)
            self._hosts.close()
            self._link.close()
        return 1 if self._host_lost is not None else 0

    def _join(self) -> NodeMembership | None:
        self._version, self._applied = -1, None
        return join(self._settings, self._link, self._hosts, self._inbox.put, self._stop_requested, self._credential)

    def _stop_requested(self, seconds: float) -> bool:
        """Wait; before joining only the ends of children and hosts and a stop signal matter. True if the node is to end."""
        deadline = boot_now() + seconds
        while (left := deadline - boot_now()) > 0:
            event = self._next(left)
            if event is _STOP or self._host_lost is not None:
                return True
            if isinstance(event, ChildEnded):
                self._reap(event.child)
        return False

    # ---- serving -------------------------------------------------------------------------------------------------

    def _serve(self, member: NodeMembership) -> bool:
        """Serve under this registration. True when the node must register again, False after a stop signal or a notice."""
        look_again: float | None = None
        while True:
            event = self._next(None if look_again is None else max(0.0, look_again - boot_now()))
            if event is _STOP or self._notice.given or self._host_lost is not None:
                self._stop(member)
                return False
            if self._is_forgotten(member, event):
                log.warning("the service does not know this node any more; joining anew")
                return True
            self._handle_event(member, event)
            look_again = self._reconcile(member)
            if not member.heartbeat.alive:
                self._pulse(member)  # starts it again
            if isinstance(event, Desired) and self._version == event.state.version:
                self._applied = self._version, boot_now()
                self._pulse(member, now=False)

    def _next(self, seconds: float | None) -> Any:
        """The next event; None after so many seconds, or earlier."""
        self._alive.touch()
        try:
            event = self._inbox.get(timeout=_LOOK_SECONDS if seconds is None else min(seconds, _LOOK_SECONDS))
        except queue.Empty:
            return None
        self._asked_to_end |= event is _STOP
        self._host_lost = event.why if isinstance(event, HostLost) else self._host_lost
        return event

    def _is_forgotten(self, member: NodeMembership, event: Any) -> bool:
        if isinstance(event, NodeForgotten):
            return event.credential == member.welcome.credential
        return isinstance(event, ChildMessage) and isinstance(event.message, UnknownNode) and event.child is member.heartbeat

    def _handle_event(self, member: NodeMembership, event: Any) -> None:
        match event:
            case Desired(node_id=node_id) if node_id == member.welcome.node_id:
                self._version = event.state.version
                self._wanted = wanted_of(event.state, event.sent_at, self._wanted)
                self._over &= {placement.identity for placement, _ in self._wanted.values()}
            case ChildMessage(child=child, message=HeartbeatResult() as beat) if child is member.heartbeat:
                self._renew(member, beat)
            case ChildMessage(child=child, message=ExecutorProgress() as progress):
                self._progress(member, self._pool.of(child), progress)
            case ChildMessage(child=child, message=PlacementEnded() as ended):
                self._ended(member, self._pool.of(child), ended)
            case ChildEnded(child=child) if child is member.heartbeat:
                log.warning("the heartbeat ended (%s) and is started again", event.why or event.code)
            case ChildEnded(child=child):
                self._executor_ended(member, child, event.why or f"ended with {event.code}", event.started)

    def _renew(self, member: NodeMembership, beat: HeartbeatResult) -> None:
        granted = {lease.placement_id: lease for lease in beat.answer.leases}
        for executor in self._pool.executors:
            for placement_id in executor.held.keys() & granted.keys():
                lease = granted[placement_id]
                executor.child.send(Renew(placement_id=placement_id, deadline=beat.sent_at + lease.seconds, token=lease.token))
        if beat.answer.desired_version != self._version or self._pool.held.keys() - granted.keys():
            member.desired.poll_soon()

    def _progress(self, member: NodeMembership, executor: ExecutorProcess | None, progress: ExecutorProgress) -> None:
        if executor is None:
            return
        for placement_id, phase in progress.phases.items():
            if (held := executor.held.get(placement_id)) is not None:
                held.progress_at, held.waits_for = progress.at, progress.waits.get(placement_id)
                held.loading = progress.loading.get(placement_id)
                if held.detaching_since is None:
                    held.phase = phase
        self._pulse(member, now=False)

    def _ended(self, member: NodeMembership, executor: ExecutorProcess | None, ended: PlacementEnded) -> None:
        if executor is None or ended.placement_id not in executor.held:
            return
        held = executor.held[ended.placement_id]
        log.info("placement %s has left its executor%s", ended.placement_id, f": {ended.detail}" if ended.detail else "")
        self._pool.release(executor, ended.placement_id, boot_now())
        self._over.add(held.placement.identity)
        if ended.lost:
            self._lose(member, [held.placement], RequeueReason.EXECUTOR_LOST, ended.detail, untaken=ended.by_node)
            if not executor.held:
                self._pool.stop(executor, 0.0)  # its cause may persist: the next placement gets a new process
        self._pulse(member)
        member.desired.poll_soon()

    def _reap(self, child: AnyChild) -> ExecutorProcess | None:
        executor = self._pool.of(child)
        if executor is not None:
            self._pool.reap(executor, boot_now())
        return executor

    def _executor_ended(self, member: NodeMembership, child: AnyChild, how: str, started: bool) -> None:
        executor = self._reap(child)
        if executor is None:
            return
        lost = [held.placement for held in executor.held.values() if held.detaching_since is None]
        self._over.update(held.placement.identity for held in executor.held.values())
        if lost:
            detail = f"the executor ({executor.child.name}) {how}"
            log.error("%s and took %d placement(s) with it", detail, len(lost))
            self._lose(member, lost, RequeueReason.EXECUTOR_LOST, detail, untaken=not started)
        self._pulse(member)

    def _lose(self, member: NodeMembership, placements: list[Leased], reason: RequeueReason, detail: str, **more: bool) -> None:
        """more: fields of PlacementsLost."""
        fences = {p.placement_id: p.fence for p in placements}
        member.desired.report_lost(PlacementsLost(reason=reason, fences=fences, detail=detail[:2000], **more))

    # ---- reconciliation ------------------------------------------------------------------------------------------

    def _reconcile(self, member: NodeMembership) -> float | None:
        """Detach placements that should not run, attach those that should. Returns when to look again, on the boot clock."""
        now = boot_now()
        self._detach_leaving(member)
        overdue = [self._detach(executor, now) for executor in self._pool.executors]
        started = [
            self._attach(placement, deadline, now)
            for placement_id, (placement, deadline) in self._wanted.items()
            if placement.identity not in self._over and placement_id not in self._pool.held
        ]
        if any(started):
            self._pulse(member)
        times = [*overdue, self._pool.maintain(now)]
        return min((time for time in times if time is not None), default=None)

    def _detach_leaving(self, member: NodeMembership) -> None:
        """Have executors checkpoint the jobs of placements that are asked to leave. The service no longer renews their leases,
        which bounds the time. A placement that has not arrived yet is given back at once."""
        for placement_id, (placement, _) in self._wanted.items():
            if not placement.leave or placement.identity in self._over:
                continue
            executor = self._pool.holder(placement_id)
            if executor is None:
                self._over.add(placement.identity)
                self._lose(member, [placement], RequeueReason.PREEMPTED, "it was asked to leave before it had come")
            elif not executor.held[placement_id].leaving:
                executor.held[placement_id].leaving = True
                executor.child.send(Detach(placement_id=placement_id, keep=True))

    def _detach(self, executor: ExecutorProcess, now: float) -> float | None:
        """Ask the executor to drop ended placements, and kill it after _DETACH_SECONDS. Returns that deadline, if any."""
        deadlines, listed = [], {placement.identity for placement, _ in self._wanted.values()}
        for placement_id, held in executor.held.items():
            if held.placement.identity in listed:
                continue
            if held.detaching_since is None:
                for_nobody = executor.loads_for_nobody([wanted for wanted, _ in self._wanted.values()])
                held.detaching_since, held.phase = now, "detaching"
                if for_nobody and not executor.stopping:
                    executor.kill()
                    return None
                executor.child.send(Detach(placement_id=placement_id))
            deadlines.append(held.detaching_since + _DETACH_SECONDS)
        if not deadlines or executor.stopping:
            return None
        if min(deadlines) <= now:
            log.error("executor %s did not detach within %.0f s; killing it", executor.child.name, _DETACH_SECONDS)
            executor.kill()
            return None
        return min(deadlines)

    def _attach(self, placement: Leased, deadline: float, now: float) -> bool:
        executor = self._pool.assign(placement, now)
        if executor is None:
            return False
        executor.child.send(attach_command(placement, deadline, executor.child.name))
        return True

    def _pulse(self, member: NodeMembership, now: bool = True) -> None:
        pulses = [held.pulse() for held in self._pool.held.values()]
        version, at = self._applied or (None, 0.0)
        member.pulse(Pulses(placements=pulses, now=now, applied_version=version, applied_at=at))

    # ---- stopping ------------------------------------------------------------------------------------------------

    def _stop(self, member: NodeMembership) -> None:
        """Drain: have executors checkpoint their jobs within the settings' stop seconds, give the placements back, end the
        children."""
        why = "the machine is about to be taken away" if self._notice.given else self._host_lost or "the worker was stopped"
        log.info("stopping: %s", why)
        self._lose(member, [], RequeueReason.NODE_LOST, why, stopping=True)  # so that it is given nothing new
        lost = [held.placement for held in self._pool.held.values() if held.detaching_since is None]
        for executor in self._pool.executors:
            self._pool.stop(executor, self._settings.worker_stop_seconds)
        deadline = boot_now() + self._settings.worker_stop_seconds + _STOP_GRACE
        while self._pool.executors and (left := deadline - boot_now()) > 0:
            event = self._next(left)
            if event is _STOP:
                break
            match event:
                case ChildEnded(child=child):
                    self._reap(child)
                case ChildMessage(child=child, message=HeartbeatResult() as beat) if child is member.heartbeat:
                    self._renew(member, beat)
                case ChildMessage(message=PlacementEnded() as ended):  # a merge says so too where it is given up
                    lost = [one for one in lost if one.placement_id != ended.placement_id or isinstance(one, MergeWork)]
        self._lose(member, lost, RequeueReason.NODE_LOST, why, stopping=True)
        member.close(seconds=_STOP_GRACE)
