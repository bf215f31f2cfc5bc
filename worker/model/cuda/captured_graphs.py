"""Captured CUDA graphs by key, in one pool of memory, which one of them uses at a time. Knows no passes and no shapes."""

import gc
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

# Other threads of the process (checkpoints, uploads) may use the device meanwhile: only the capturing one's calls are captured.
_ERRORS = "thread_local"
_SLACK, _SLACK_PART = 2**28, 1 / 16  # bytes, and of what passes took: a pool's segments are rounded up, libraries take some

Key = TypeVar("Key", bound=Hashable)
Result = TypeVar("Result")


@dataclass(frozen=True)
class _Graph(Generic[Result]):
    """rest: what is launched after something that is not captured."""

    graph: torch.cuda.CUDAGraph
    inputs: Tensor
    result: Result
    rest: torch.cuda.CUDAGraph | None = None


class CapturedGraphs(Generic[Key, Result]):
    """The `most` used last. Holds nobody who holds it: in a cycle of references graphs would be freed by the garbage collector,
    at any time."""

    def __init__(self, device: torch.device, most: int) -> None:
        self._device, self._most = device, most
        self._graphs: OrderedDict[Key, _Graph[Result]] = OrderedDict()
        self._pool: Any = None
        self._stream: Any = None  # of all captures: memory is shared within one stream
        self._buffers: Sequence[int] = ()

    def __contains__(self, key: Key) -> bool:
        return key in self._graphs

    def __iter__(self) -> Iterator[Key]:
        return iter(self._graphs)

    def __len__(self) -> int:
        return len(self._graphs)

    def belong_to(self, buffers: Sequence[int]) -> bool:
        """What is captured reads and writes these buffers, by address: graphs of others are forgotten. Whether they differ."""
        differ = buffers != self._buffers
        if differ:
            self.forget()
            self._buffers = buffers
        return differ

    def forget(self) -> None:
        self._graphs.clear()
        self._pool = None

    def replay(self, key: Key, host: Tensor) -> Result:
        """With these inputs, in pinned memory."""
        self._graphs.move_to_end(key)
        found = self._graphs[key]
        found.inputs.copy_(host, non_blocking=True)
        found.graph.replay()
        return found.result

    def replay_rest(self, key: Key) -> None:
        """After `replay` of this key."""
        rest = self._graphs[key].rest
        assert rest is not None, "a rest was captured, too"
        rest.replay()

    def capture(
        self,
        key: Key,
        inputs: Tensor,
        run: Callable[[], Result],
        warm: Callable[[], object] | None,
        rest: Callable[[], object] | None = None,
    ) -> None:
        """Capture `run`, which reads `inputs`, and what of it is launched later, `rest`. Their kernels were launched before.
        warm: makes the same launches without harm; None where the pool holds the memory of a graph that takes no less. Else,
        where the device has too little memory for the pool beside the allocator's caches, these are emptied: the pool grows
        from what `warm` leaves there. What is launched next has to allocate its memory anew then."""
        if len(self._graphs) == self._most:
            self._graphs.popitem(last=False)
        self._graphs[key] = self._recorded(inputs, run, warm, rest)

    def _recorded(
        self,
        inputs: Tensor,
        run: Callable[[], Result],
        warm: Callable[[], object] | None,
        rest: Callable[[], object] | None,
    ) -> _Graph[Result]:
        # PyTorch's default capture stream belongs to the device that captured first.
        self._stream = self._stream or torch.cuda.Stream(self._device)
        self._stream.wait_stream(torch.cuda.current_stream())
        self._pool = self._pool or torch.cuda.graph_pool_handle()
        graph = torch.cuda.CUDAGraph()
        if warm is None or self._has_room():
            recording: AbstractContextManager[None] = _recording(graph, self._pool, self._stream)
        else:
            with torch.cuda.stream(self._stream):
                warm()
            torch.cuda.current_stream().wait_stream(self._stream)
            recording = torch.cuda.graph(graph, self._pool, self._stream, _ERRORS)
        with _no_collection(), recording:
            result = run()
        if rest is None:
            return _Graph(graph, inputs, result)
        later = torch.cuda.CUDAGraph()
        with _no_collection(), _recording(later, self._pool, self._stream):
            rest()
        return _Graph(graph, inputs, result, later)

    def _has_room(self) -> bool:
        """Whether a pool of its own finds as much memory as passes took at most, while caches keep theirs. Counts the pool's
        memory so far among the caches'. Within a capture the allocator empties no cache, so it must not err low."""
        device = self._device
        held, reserved = torch.cuda.memory_allocated(device), torch.cuda.memory_reserved(device)
        taken = max(torch.cuda.max_memory_allocated(device), reserved) - held
        free, whole = torch.cuda.mem_get_info(device)
        allowed = int(torch.cuda.get_per_process_memory_fraction(device) * whole) - reserved
        return taken + _SLACK + _SLACK_PART * taken <= min(free, allowed)


@contextmanager
def _recording(graph: torch.cuda.CUDAGraph, pool: Any, stream: torch.cuda.Stream) -> Iterator[None]:
    """torch.cuda.graph without the emptying of all caches, of the device's memory and of pinned memory, which passes that are
    launched next would have to allocate anew."""
    with torch.cuda.stream(stream):
        graph.capture_begin(pool, _ERRORS)
        try:
            yield
        except BaseException:
            with suppress(RuntimeError):  # the capture is void; what it was ended by says more
                graph.capture_end()
            raise
        graph.capture_end()


@contextmanager
def _no_collection() -> Iterator[None]:
    """Another graph that the garbage collector frees on this thread would end the capture."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()
