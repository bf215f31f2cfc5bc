"""Host memory that an executor's processes share: tensors in segments (memfd), mapped by each process that holds one.

A rank makes a segment once, pins it where it has a GPU, and uses it again once nobody holds a tensor in it, since mapping and
pinning take longer than the copy. No segment has a name in a file system: a killed process leaves none behind.
Knows no messages: rank_link.py passes descriptors.
"""

import logging
import math
import mmap
import os
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Handle:
    """A tensor in a segment, as a message names it. descriptor: place among the message's descriptors; None where the receiver
    has the segment."""

    owner: int  # pid
    segment: int
    bytes: int
    descriptor: int | None
    offset: int
    shape: tuple[int, ...]
    dtype: torch.dtype


class _Segment:
    def __init__(self, owner: int, number: int, descriptor: int, size: int) -> None:
        self.key, self.descriptor, self.size = (owner, number), descriptor, size
        self.map = mmap.mmap(descriptor, size)
        self.address = int(np.frombuffer(self.map, np.uint8).ctypes.data)
        self.users = 0  # tensors in it, here and, where it was lent, elsewhere
        self.pinned = False

    def tensor(self, offset: int, shape: Sequence[int], dtype: torch.dtype, gone: Callable[[], None]) -> Tensor:
        """A view; `gone` is called once no tensor shares its storage."""
        array = np.frombuffer(self.map, np.uint8)  # an object of its own, which the storage keeps alive
        weakref.finalize(array, gone).atexit = False
        stop = offset + math.prod(shape) * dtype.itemsize
        return torch.from_numpy(array)[offset:stop].view(dtype).view(tuple(shape))


class SharedHostMemory:
    """lends: a rank, whose segments rank 0 holds until it says otherwise; else rank 0, which lends for the time of a call."""

    def __init__(self, lends: bool) -> None:
        self._lends, self._pinned = lends, False
        self._own: dict[int, _Segment] = {}
        self._free: dict[int, list[_Segment]] = {}  # by size
        self._foreign: dict[tuple[int, int], _Segment] = {}  # of other processes, mapped here
        self._addresses: dict[int, _Segment] = {}
        self._known: set[int] = set()  # own segments that rank 0 has mapped
        self._gone: deque[_Segment] = deque()  # finalizers run anywhere, so they only note
        self._returned: deque[tuple[int, int]] = deque()
        self._last = 0

    @property
    def pid(self) -> int:
        """Of this process, which owns what it makes."""
        return os.getpid()

    def pin(self) -> None:
        """From now on register segments with CUDA, in the current device's context."""
        self._pinned = True

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """A tensor of this shape, its content undefined."""
        self._reclaim()
        size = max(1, math.prod(shape) * dtype.itemsize)
        free = self._free.get(size)
        segment = free.pop() if free else self._made(size)
        return self._used(segment, 0, shape, dtype)

    def handle(self, tensor: Tensor, descriptors: list[int]) -> tuple[Handle, Tensor]:
        """Name this tensor in a message, and add its segment's descriptor where the receiver lacks it. A tensor elsewhere is
        copied into a segment. The tensor named must live until the receiver has it."""
        segment = self._addresses.get(tensor.untyped_storage().data_ptr())
        if segment is None or not tensor.is_contiguous():
            tensor = self.empty(tensor.shape, tensor.dtype).copy_(tensor)
            segment = self._addresses[tensor.untyped_storage().data_ptr()]
        place: int | None = None
        if not (self._lends and segment.key[1] in self._known):
            place = len(descriptors)
            descriptors.append(segment.descriptor)
        if self._lends:
            segment.users += 1
            self._known.add(segment.key[1])
        offset = int(tensor.storage_offset()) * tensor.element_size()
        return Handle(*segment.key, segment.size, place, offset, tuple(tensor.shape), tensor.dtype), tensor

    def received(self, handle: Handle, descriptors: Sequence[int]) -> Tensor:
        """The tensor of a message. Takes over its descriptor."""
        key = handle.owner, handle.segment
        descriptor = descriptors[handle.descriptor] if handle.descriptor is not None else None
        if handle.owner == self.pid:
            if descriptor is not None:
                os.close(descriptor)
            return self._used(self._own[handle.segment], handle.offset, handle.shape, handle.dtype)
        segment = self._foreign.get(key)
        if segment is None:
            assert descriptor is not None, "a segment comes with its descriptor at first"
            segment = _Segment(*key, descriptor, handle.bytes)
            if self._lends:  # used within the call alone
                os.close(descriptor)
            else:
                self._foreign[key] = self._addresses[segment.address] = segment
        elif descriptor is not None:
            os.close(descriptor)
        gone = partial(self._returned.append, key) if not self._lends else lambda: None
        return segment.tensor(handle.offset, handle.shape, handle.dtype, gone)

    def take_returned(self, owner: int) -> list[int]:
        """The segments of this process that no tensor here shares any more, once for each loan."""
        mine, others = list[tuple[int, int]](), list[tuple[int, int]]()
        while self._returned:
            key = self._returned.popleft()
            (mine if key[0] == owner else others).append(key)
        self._returned.extend(others)
        return [number for _, number in mine]

    def take_back(self, segments: Sequence[int]) -> None:
        """Rank 0 has returned these."""
        for number in segments:
            self._release(self._own[number])

    def trim(self) -> list[int]:
        """Unmap the segments that nobody uses, and name them: rank 0 is to `drop` them."""
        self._reclaim()
        unused = [segment for some in self._free.values() for segment in some]
        self._free.clear()
        for segment in unused:
            self._remove(segment)
        return [segment.key[1] for segment in unused]

    def drop(self, owner: int, segments: Sequence[int] | None = None) -> None:
        """Forget these segments of another process, or all of its."""
        numbers = [number for pid, number in self._foreign if pid == owner] if segments is None else segments
        for number in numbers:
            segment = self._foreign.pop((owner, number), None)
            if segment is not None:
                del self._addresses[segment.address]
                os.close(segment.descriptor)

    def _made(self, size: int) -> _Segment:
        self._last += 1
        descriptor = os.memfd_create("motet-adapters", os.MFD_CLOEXEC)
        os.ftruncate(descriptor, size)
        segment = _Segment(self.pid, self._last, descriptor, size)
        self._own[self._last] = self._addresses[segment.address] = segment
        if self._pinned:
            error = int(torch.cuda.cudart().cudaHostRegister(segment.address, size, 0))
            segment.pinned = not error
            if error:
                log.warning("%d bytes of host memory cannot be pinned (CUDA error %d); copies there are slower", size, error)
                with suppress(RuntimeError):  # or the next launch would be taken for the one that failed
                    torch.zeros(1, device="cuda")
        return segment

    def _remove(self, segment: _Segment) -> None:
        del self._own[segment.key[1]], self._addresses[segment.address]
        self._known.discard(segment.key[1])
        if segment.pinned:
            torch.cuda.cudart().cudaHostUnregister(segment.address)
        os.close(segment.descriptor)

    def _used(self, segment: _Segment, offset: int, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        segment.users += 1
        return segment.tensor(offset, shape, dtype, partial(self._gone.append, segment))

    def _reclaim(self) -> None:
        while self._gone:
            self._release(self._gone.popleft())

    def _release(self, segment: _Segment) -> None:
        segment.users -= 1
        if not segment.users:
            self._free.setdefault(segment.size, []).append(segment)
