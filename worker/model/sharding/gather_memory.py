"""The device memory that gathers read and write: on a GPU such as NCCL can map into every rank of a host. Knows no weights."""

from contextlib import AbstractContextManager, nullcontext

import torch
import torch.distributed as dist


class GatherMemory:
    """A rank's. pool: of a GPU's memory; None on a CPU, and where torch has no such memory for the GPU. Ranks that allocate the
    same sizes in the same order can map each other's."""

    def __init__(self, rank: int, world: int, device: torch.device) -> None:
        self.pool: torch.cuda.MemPool | None = None
        self._device = device
        if device.type != "cuda":
            return
        # torch lends NCCL's allocator with a process group alone, and a base is loaded before its ranks meet
        lender = dist.ProcessGroupNCCL(dist.HashStore(), rank, world, dist.ProcessGroupNCCL.Options())
        if lender.supports_tensor_alloc(device):
            self._allocator = lender.mem_allocator
            with torch.cuda.device(device):  # a pool is of the current one
                self.pool = torch.cuda.MemPool(self._allocator)
        lender.shutdown()

    def allocating(self) -> AbstractContextManager[None]:
        """Within it this thread's tensors on the device are allocated here."""
        return torch.cuda.use_mem_pool(self.pool, self._device) if self.pool is not None else nullcontext()
