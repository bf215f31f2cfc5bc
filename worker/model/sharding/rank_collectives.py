"""What the ranks of an executor do together: gather equal parts into a buffer, and agree on a count. Knows no weights.

Gloo carries tensors in main memory and every count; NCCL those on GPUs, on a stream of its own beside the current one. On one
host, where NCCL can map the ranks' memory into each other, the GPUs' copy engines write to each other's buffers. A rank that
ends fails the gathers of all others (gloo notices the closed connection, NCCL its timeout).
"""

import logging
import os
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from worker.model.sharding.gather_memory import GatherMemory

log = logging.getLogger(__name__)

COLLECTIVE_SECONDS = 600.0  # after which an operation that a rank does not come to fails
_LOOPBACK, _LOOPBACK_INTERFACE = "127.0.0.1", "lo"
# Between ranks that map each other's memory: copy engines, which leave all multiprocessors to what computes. An NCCL without
# them gathers by so many programs: fewer leave NVLink idle, more bring nothing
_ENGINES = 2  # NCCL_CTA_POLICY_ZERO, since 2.28
_PROGRAMS = 16
# torch renamed it in 2.13
_gather: Callable[..., dist.Work | None] = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor

Finish = Callable[[], None]  # waits until a gather has landed, on a GPU the current stream alone


class GatherFailed(RuntimeError):
    """The ranks do not run together any more: one has ended, or has not come within the timeout."""


def open_store(address: str, world: int, seconds: float) -> dist.TCPStore:
    """The rendezvous of a group, held by rank 0, at any free port. Others reach it at the `port` that it says."""
    return dist.TCPStore(address, 0, world, True, timedelta(seconds=seconds), wait_for_workers=False)


def reach_store(address: str, port: int, world: int, seconds: float) -> dist.TCPStore:
    return dist.TCPStore(address, port, world, False, timedelta(seconds=seconds))


class RankCollectives:
    """One per process, since torch's default group is."""

    def __init__(
        self,
        store: dist.TCPStore,
        rank: int,
        world: int,
        device: torch.device,
        seconds: float,
        several_hosts: bool = False,
        interface: str | None = None,
    ) -> None:
        """Returns once all ranks are there. seconds: after which an operation fails. interface: of the network, where ranks are
        on several hosts and no variable names another. Raises GatherFailed."""
        self.rank, self.world, self._device = rank, world, device
        self._timeout, self._several_hosts = timedelta(seconds=seconds), several_hosts
        self._shared: GatherMemory | None = None
        self._group: dist.ProcessGroup | None = None  # that gathers within shared memory; None: the default one
        if store.host == _LOOPBACK:  # a host's own name need not resolve
            os.environ.setdefault("GLOO_SOCKET_IFNAME", _LOOPBACK_INTERFACE)
        if interface is not None:
            for library in ("GLOO", "NCCL"):
                os.environ.setdefault(f"{library}_SOCKET_IFNAME", interface)
        backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
        try:
            dist.init_process_group(backend, store=store, rank=rank, world_size=world, timeout=self._timeout)
            self.most(0)
        except (RuntimeError, ValueError) as error:
            raise GatherFailed(f"rank {rank} of {world} did not find the others: {error}") from error
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def most(self, count: int) -> int:
        """The largest count that any rank came with; all ranks come."""
        counts = torch.tensor([count])
        try:
            dist.all_reduce(counts, dist.ReduceOp.MAX)
        except RuntimeError as error:
            raise GatherFailed(f"the ranks could not agree: {error}") from error
        return int(counts)

    def share(self, memory: GatherMemory) -> None:
        """Map every rank's memory into the others, instead of what was shared before, where they are GPUs of one host and can.
        All ranks come, with as much allocated. Raises GatherFailed where some ranks did, and others did not."""
        self.unshare()
        if self._several_hosts or self._device.type == "cpu" or self.most(int(memory.pool is None)):
            return
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = self._timeout
        if hasattr(options.config, "cta_policy"):
            options.config.cta_policy = _ENGINES
        else:
            options.config.min_ctas = options.config.max_ctas = _PROGRAMS
            log.warning("this NCCL gathers by programs instead of copy engines, which slows what computes beside them")
        self._group = dist.new_group(timeout=self._timeout, backend="nccl", pg_options=options, device_id=self._device)
        why = self._registered(memory)
        if not self.most(int(why is not None)):
            self._shared = memory
        elif self.most(int(why is None)):
            raise GatherFailed(f"some ranks map each other's memory and others do not: {why or 'this one does'}")
        else:
            log.warning("NCCL does not map the ranks' memory into each other, so gathers take longer: %s", why)
            self._group = None

    def _registered(self, memory: GatherMemory) -> str | None:
        """None: NCCL has mapped it; else why not."""
        try:
            self._backend.register_mem_pool(memory.pool, True)
        except (RuntimeError, TypeError) as error:
            return str(error)
        return None

    def unshare(self) -> None:
        """Unmap what was shared last, before it is freed: gathers have landed, or the ranks failed. Waits for nobody."""
        if self._shared is not None:
            try:
                self._backend.deregister_mem_pool(self._shared.pool)
            except RuntimeError as error:  # the group has failed: its memory goes with the process
                log.warning("NCCL does not unmap the ranks' memory: %s", error)
        self._shared = self._group = None

    @property
    def _backend(self) -> Any:
        assert self._group is not None, "only a group that was made for it shares memory"
        return self._group._get_backend(self._device)

    def gather(self, whole: Tensor, part: Tensor) -> Finish:
        """Begin to gather every rank's `part`, uint8 [n], into `whole`, uint8 [world * n]. On a GPU it starts after what the
        current stream was given so far, and runs beside what comes later."""
        if self._stream is not None:
            return self._gather_beside(whole, part, self._stream)
        try:
            work = _gather(whole, part, async_op=True)
        except RuntimeError as error:
            raise GatherFailed(f"a gather could not begin: {error}") from error
        assert work is not None, "an asynchronous gather can be waited for"

        def finish() -> None:
            try:
                work.wait()
            except RuntimeError as error:
                raise GatherFailed(f"a gather ended: {error}") from error

        return finish

    def _gather_beside(self, whole: Tensor, part: Tensor, stream: torch.cuda.Stream) -> Finish:
        stream.wait_stream(torch.cuda.current_stream(whole.device))  # which may still read what the buffer holds
        with torch.cuda.stream(stream):
            _gather(whole, part, group=self._group)
            landed = torch.cuda.Event()
            landed.record(stream)
        return lambda: torch.cuda.current_stream(whole.device).wait_event(landed)

    def close(self) -> None:
        """Leave the group. Waits for nobody."""
        self.unshare()
        if dist.is_initialized():
            dist.destroy_process_group()
