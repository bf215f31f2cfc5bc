"""Captured graphs of short passes: when a bucket is captured, and which captured bucket takes a pass of another one.

A pass of a bucket that is not captured is launched, which wastes about one replayed pass; a capture costs about two. So a
bucket is captured once its passes have wasted as much as that: the ski-rental rule, never worse than twice the best in
hindsight. Knows shapes and how to launch a pass; knows no adapters and no tasks.
"""

import gc
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from worker.model.cuda.device_batch import BatchShape
from worker.model.cuda.fused_pass import PassResult

MAX_GRAPHS = 64
PassMode = Literal["saved", "recomputed", "forward"]  # a training pass saves its activations or recomputes them
SAVED, RECOMPUTED, FORWARD = get_args(PassMode)
# Other threads of the process (checkpoints, uploads) may use the device meanwhile: only the capturing one's calls are captured.
CAPTURE_ERRORS = "thread_local"
# In replayed passes. Both depend on the host: a launch wasted 0.6 and 1.2, a capture 2.1 and 2.7 (docs/NUMERICS.md, Captured or
# launched). Padding is taken where it is less than what a launch wasted at least.
LAUNCH_WASTES, CAPTURE_COSTS, MOST_PADDING = 1.0, 2.0, 0.6
CAPTURE_AFTER = 3  # passes of a bucket, the last of which captures it, where no other bucket takes one
assert (CAPTURE_AFTER - 1) * LAUNCH_WASTES == CAPTURE_COSTS

Launch = Callable[[BatchShape, Tensor, PassMode], PassResult]


@dataclass(frozen=True)
class _Graph:
    graph: torch.cuda.CUDAGraph
    inputs: Tensor
    result: PassResult


class PassGraphs:
    """Holds no trainer: in a cycle of references graphs would be freed by the garbage collector, at any time."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._graphs: OrderedDict[tuple[BatchShape, PassMode], _Graph] = OrderedDict()
        self._wasted = defaultdict[tuple[BatchShape, PassMode], float](float)  # replayed passes, of buckets not captured
        self._launched = set[tuple[BatchShape, PassMode]]()
        self._pool: Any = None  # memory of all graphs: one runs at a time, so their activations share it
        self._capture_stream: Any = None  # of all graphs: memory is shared within one stream
        self._buffers: Sequence[int] = ()

    @property
    def shapes(self) -> list[BatchShape]:
        """The buckets that have a captured graph."""
        return [shape for shape, _ in self._graphs]

    def belong_to(self, buffers: Sequence[int]) -> None:
        """The passes read and write these buffers, by address: graphs of others are forgotten."""
        if buffers != self._buffers:
            self.forget()
            self._buffers = buffers

    def forget(self) -> None:
        self._graphs.clear()
        self._pool = None

    def larger(self, shape: BatchShape, mode: PassMode) -> Iterator[BatchShape]:
        """Captured buckets that may take a pass of `shape` for less than launching it costs, the least padded first; none where
        `shape` is captured itself, or is to be now."""
        key = (shape, mode)
        if key in self._graphs or self._wasted.get(key, 0.0) >= CAPTURE_COSTS:
            return
        able = {known: known.padding_of(shape) for known, of in self._graphs if of == mode and known.may_take(shape)}
        yield from sorted((known for known in able if able[known] < MOST_PADDING), key=lambda known: able[known])

    def waste(self, shape: BatchShape, mode: PassMode, larger: BatchShape) -> None:
        """A pass of `shape` is replayed in the bucket `larger`."""
        self._wasted[shape, mode] += larger.padding_of(shape)

    def run(self, shape: BatchShape, host: Tensor, mode: PassMode, launch: Launch) -> PassResult:
        """A pass from its buffer in pinned memory: launched, by `launch` from the uploaded buffer, or replayed. Its bucket is
        captured if that is due; it was launched before, so that its kernels are compiled and loaded."""
        key = (shape, mode)
        if key not in self._graphs:
            if self._wasted[key] < CAPTURE_COSTS or key not in self._launched:
                self._wasted[key] += LAUNCH_WASTES
                self._launched.add(key)
                return launch(shape, host.to(self._device, non_blocking=True), mode)
            del self._wasted[key]
            if len(self._graphs) == MAX_GRAPHS:
                self._graphs.popitem(last=False)
            self._graphs[key] = self._capture(shape, host, mode, launch)
        self._graphs.move_to_end(key)
        graph = self._graphs[key]
        graph.inputs.copy_(host, non_blocking=True)
        graph.graph.replay()
        return graph.result

    def _capture(self, shape: BatchShape, host: Tensor, mode: PassMode, launch: Launch) -> _Graph:
        inputs = host.to(self._device)
        run: Callable[[], PassResult] = lambda: launch(shape, inputs, mode)  # noqa: E731
        # PyTorch's default capture stream belongs to the device that captured first.
        self._capture_stream = self._capture_stream or torch.cuda.Stream(self._device)
        self._capture_stream.wait_stream(torch.cuda.current_stream())
        self._pool = self._pool or torch.cuda.graph_pool_handle()
        graph = torch.cuda.CUDAGraph()
        if self._pool_holds(shape, mode):
            recording: AbstractContextManager[None] = _recording(graph, self._pool, self._capture_stream)
        else:
            if mode != FORWARD:
                # The warm-up pass must not change gradients: a zeroed table has no adapter rows, and makes the same launches.
                inputs.zero_()
            with torch.cuda.stream(self._capture_stream):
                run()
            torch.cuda.current_stream().wait_stream(self._capture_stream)
            # It gives back what the warm-up and launched passes left in the allocator's cache: the pool grows from that.
            recording = torch.cuda.graph(graph, self._pool, self._capture_stream, CAPTURE_ERRORS)
        with no_collection(), recording:
            result = run()
        return _Graph(graph, inputs, result)

    def _pool_holds(self, shape: BatchShape, mode: PassMode) -> bool:
        """Whether a pass that took no less memory was captured before, so that this one finds its memory in the pool: no fewer
        tokens and labels, adapters as wide, dropout if this one has it, and activations saved if this one saves them."""
        return any(of in (mode, SAVED) and known.takes_as_much_as(shape) for known, of in self._graphs)


@contextmanager
def _recording(graph: torch.cuda.CUDAGraph, pool: Any, stream: torch.cuda.Stream) -> Iterator[None]:
    """torch.cuda.graph without the emptying of all caches, of the device's memory and of pinned memory, which passes that are
    launched next would have to allocate anew."""
    with torch.cuda.stream(stream):
        graph.capture_begin(pool, CAPTURE_ERRORS)
        try:
            yield
        except BaseException:
            with suppress(RuntimeError):  # the capture is void; what it was ended by says more
                graph.capture_end()
            raise
        graph.capture_end()


@contextmanager
def no_collection() -> Iterator[None]:
    """For a capture: another graph that the garbage collector frees on this thread would end it."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()
