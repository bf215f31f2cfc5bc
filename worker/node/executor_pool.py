"""The daemon's executor processes, and the devices and placements of each. Keeps one spare warm and stops idle ones.

Importing torch takes seconds, so a placement gets a process that has already imported it.
"""

import logging
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial

from contract.messages.placement_messages import AnswersOnly, BaseModelRef, Leased, MergeWork
from worker.boot_clock import boot_now
from worker.hosts.host_map import node_environment
from worker.hosts.host_messages import EXECUTOR_MODULE
from worker.node.child_process import AnyChild, Child, ChildEnded, ChildMessage
from worker.node.host_child import HostChild
from worker.node.node_hosts import NodeHosts
from worker.pipe_messages import EXECUTOR_NEWS, Phase, PlacementPulse, Stop
from worker.settings import Settings

log = logging.getLogger(__name__)

_RESPAWN_SECONDS = 5.0
IDLE_SECONDS = 30.0  # how long an executor keeps its base after its last placement
_END_SECONDS = 10.0  # beyond those that it was given to end in, after which an executor is killed: others wait for its devices


@dataclass
class HeldPlacement:
    """A placement on an executor, with a task or for answers only, as the daemon knows it. Times are on the boot clock."""

    placement: Leased
    progress_at: float
    phase: Phase = "loading"
    detaching_since: float | None = None
    leaving: bool = False  # asked to checkpoint its jobs and leave
    waits_for: str | None = None  # what it cannot go on without, in a sentence
    loading: str | None = None  # how far the fetching, then the loading, of its base is, in a sentence

    def pulse(self) -> PlacementPulse:
        """Its part of the next heartbeat."""
        return PlacementPulse(
            placement_id=self.placement.placement_id,
            fence=self.placement.fence,
            phase=self.phase,
            progress_at=self.progress_at,
            waits_for=self.waits_for,
            loading=self.loading,
        )


@dataclass(eq=False)
class ExecutorProcess:
    """One executor process. `devices` is None for the spare, which holds nothing yet."""

    child: AnyChild
    devices: frozenset[int] | None = None
    base: BaseModelRef | None = None
    held: dict[str, HeldPlacement] = field(default_factory=dict)
    idle_since: float = 0.0
    stopping: bool = False
    end_until: float | None = None  # it was asked to end by then; infinite once it was killed

    @property
    def drops_some(self) -> bool:
        """Whether it still holds a placement that it was told to drop."""
        return any(held.detaching_since is not None for held in self.held.values())

    def loads_for_nobody(self, wanted: Iterable[Leased]) -> bool:
        """Whether it still loads a base only to be asked, and none of the wanted placements has that base: a task of another
        base would wait for its end."""
        same = any(
            self.base is not None and one.base.identity == self.base.identity
            for one in wanted
            if self.devices == frozenset(one.device_indexes)
        )
        alone = all(isinstance(held.placement, AnswersOnly) and held.phase == "loading" for held in self.held.values())
        return bool(self.held) and alone and not same

    def kill(self) -> None:
        """Kill its process, once: it keeps its devices until it has ended."""
        self.stopping, self.end_until = True, math.inf
        self.child.kill()


class ExecutorPool:
    """All executor processes of this node, over its devices. An executor runs on the host of the first of its devices."""

    def __init__(self, settings: Settings, hosts: NodeHosts, on_event: Callable[[ChildMessage | ChildEnded], None]) -> None:
        self._settings, self._hosts, self._on_event = settings, hosts, on_event
        self._devices = frozenset(device.index for device in hosts.own)  # a spare is on this host
        self._next_spare = 0.0  # no spare starts before this
        self.executors: list[ExecutorProcess] = []

    @property
    def held(self) -> dict[str, HeldPlacement]:
        """Every placement that some executor holds, by id."""
        return {key: held for executor in self.executors for key, held in executor.held.items()}

    def holder(self, placement_id: str) -> ExecutorProcess | None:
        return next((executor for executor in self.executors if placement_id in executor.held), None)

    def of(self, child: AnyChild) -> ExecutorProcess | None:
        return next((executor for executor in self.executors if executor.child is child), None)

    def assign(self, placement: Leased, now: float) -> ExecutorProcess | None:
        """Assign the placement to an executor and return it. None while its devices are not free.

        Placements with the same devices and the same base share an executor; an executor without placements may change its
        base. One that was told to drop a placement takes no other until it has: it may hang, and be killed for it. A merge has
        no devices, and a process of its own.
        """
        devices = frozenset(placement.device_indexes)
        for executor in self.executors:
            if executor.devices is None or not executor.devices & devices:
                continue
            base = executor.base.identity if executor.base is not None and executor.held else None
            same = executor.devices == devices and not executor.stopping and base in (None, placement.base.identity)
            if not same or executor.drops_some:
                if not executor.held:
                    self.stop(executor, 0.0)
                return None
        if isinstance(placement, MergeWork):
            executor = self._start("worker.export")
        else:
            address = self._hosts.map.address(devices)
            spare = self._spare() if address is None else None
            executor = next((h for h in self.executors if h.devices == devices), None) or spare or self._start(address=address)
        executor.devices, executor.base = devices, placement.base
        executor.held[placement.placement_id] = HeldPlacement(placement, progress_at=now)
        return executor

    def release(self, executor: ExecutorProcess, placement_id: str, now: float) -> None:
        """Remove a placement from its executor."""
        del executor.held[placement_id]
        executor.idle_since = now

    def stop(self, executor: ExecutorProcess, seconds: float) -> None:
        """Ask an executor to end within `seconds`."""
        executor.stopping = True
        if executor.end_until is None:
            executor.end_until = boot_now() + seconds + _END_SECONDS
            executor.child.send(Stop(seconds=seconds))

    def maintain(self, now: float) -> float | None:
        """Stop idle executors, kill those that do not end, and keep a spare where a device is free. Returns when to look
        again."""
        for executor in self.executors:
            if executor.end_until is not None and executor.end_until <= now and executor.child.alive:
                log.error("executor %s was asked to end and did not; killing it", executor.child.name)
                executor.kill()
            if (
                executor.devices is not None
                and not executor.held
                and not executor.stopping
                and now - executor.idle_since >= IDLE_SECONDS
            ):
                log.info("executor %s was idle for %.0f s; stopping it", executor.child.name, IDLE_SECONDS)
                self.stop(executor, 0.0)
        taken = frozenset[int]().union(*(executor.devices for executor in self.executors if executor.devices))
        times = [h.idle_since + IDLE_SECONDS for h in self.executors if h.devices is not None and not h.held and not h.stopping]
        times += [h.end_until for h in self.executors if h.end_until is not None and h.child.alive]
        if self._devices - taken and self._spare() is None:
            if now >= self._next_spare:
                self._start()
            else:
                times.append(self._next_spare)
        return min(times, default=None)

    def reap(self, executor: ExecutorProcess, now: float) -> None:
        """Remove an executor whose process has ended. A spare that ended unasked is replaced after _RESPAWN_SECONDS."""
        self.executors.remove(executor)
        if executor.devices is None and not executor.stopping:
            log.error("an executor (%s) ended before it was given anything; its log tells why", executor.child.name)
            self._next_spare = now + _RESPAWN_SECONDS

    def kill(self) -> None:
        """Kill all executors at once and drop their placements."""
        for executor in self.executors:
            executor.held.clear()
            executor.kill()

    def _spare(self) -> ExecutorProcess | None:
        return next((executor for executor in self.executors if executor.devices is None and not executor.stopping), None)

    def _start(self, module: str = EXECUTOR_MODULE, address: str | None = None) -> ExecutorProcess:
        if address is None:
            executor = ExecutorProcess(Child(module, EXECUTOR_NEWS, self._on_event))
        else:
            secret, environment = self._settings.worker_hosts_secret, node_environment(self._settings)
            assert secret is not None, "without it no host is reached"
            offset = partial(self._hosts.clock_offset, address)
            executor = ExecutorProcess(HostChild(module, EXECUTOR_NEWS, self._on_event, address, secret, environment, offset))
        self.executors.append(executor)
        return executor
