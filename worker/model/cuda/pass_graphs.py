"""Captured graphs of short passes: when a bucket is captured, and which captured bucket takes a pass of another one.

A pass of a bucket that is not captured is launched, which wastes about one replayed pass; a capture costs about two. So a
bucket is captured once its passes have wasted as much as that: the ski-rental rule, never worse than twice the best in
hindsight. Knows shapes and how to launch a pass; knows no adapters and no tasks.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Literal, get_args

import torch
from torch import Tensor

from worker.model.cuda.captured_graphs import CapturedGraphs
from worker.model.cuda.device_batch import BatchShape
from worker.model.cuda.fused_pass import PassResult

MAX_GRAPHS = 64
PassMode = Literal["saved", "recomputed", "forward"]  # a training pass saves its activations or recomputes them
SAVED, RECOMPUTED, FORWARD = get_args(PassMode)
# In replayed passes. Both depend on the host: a launch wasted 0.6 and 1.2, a capture 2.1 and 2.7 (docs/NUMERICS.md, Captured or
# launched). Padding is taken where it is less than what a launch wasted at least.
LAUNCH_WASTES, CAPTURE_COSTS, MOST_PADDING = 1.0, 2.0, 0.6
CAPTURE_AFTER = 3  # passes of a bucket, the last of which captures it, where no other bucket takes one
assert (CAPTURE_AFTER - 1) * LAUNCH_WASTES == CAPTURE_COSTS

Launch = Callable[[BatchShape, Tensor, PassMode], PassResult]


class PassGraphs:
    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._captured = CapturedGraphs[tuple[BatchShape, PassMode], PassResult](device, MAX_GRAPHS)
        self._wasted = defaultdict[tuple[BatchShape, PassMode], float](float)  # replayed passes, of buckets not captured
        self._launched = set[tuple[BatchShape, PassMode]]()

    @property
    def shapes(self) -> list[BatchShape]:
        """The buckets that have a captured graph."""
        return [shape for shape, _ in self._captured]

    def belong_to(self, buffers: Sequence[int]) -> None:
        """The passes read and write these buffers, by address: graphs of others are forgotten."""
        self._captured.belong_to(buffers)

    def forget(self) -> None:
        self._captured.forget()

    def larger(self, shape: BatchShape, mode: PassMode) -> Iterator[BatchShape]:
        """Captured buckets that may take a pass of `shape` for less than launching it costs, the least padded first; none where
        `shape` is captured itself, or is to be now."""
        key = (shape, mode)
        if key in self._captured or self._wasted.get(key, 0.0) >= CAPTURE_COSTS:
            return
        able = {known: known.padding_of(shape) for known, of in self._captured if of == mode and known.may_take(shape)}
        yield from sorted((known for known in able if able[known] < MOST_PADDING), key=lambda known: able[known])

    def waste(self, shape: BatchShape, mode: PassMode, larger: BatchShape) -> None:
        """A pass of `shape` is replayed in the bucket `larger`."""
        self._wasted[shape, mode] += larger.padding_of(shape)

    def run(self, shape: BatchShape, host: Tensor, mode: PassMode, launch: Launch) -> PassResult:
        """A pass from its buffer in pinned memory: launched, by `launch` from the uploaded buffer, or replayed. Its bucket is
        captured if that is due; it was launched before, so that its kernels are compiled and loaded."""
        key = (shape, mode)
        if key not in self._captured:
            if self._wasted[key] < CAPTURE_COSTS or key not in self._launched:
                self._wasted[key] += LAUNCH_WASTES
                self._launched.add(key)
                return launch(shape, host.to(self._device, non_blocking=True), mode)
            del self._wasted[key]
            self._capture(key, host, launch)
        return self._captured.replay(key, host)

    def _capture(self, key: tuple[BatchShape, PassMode], host: Tensor, launch: Launch) -> None:
        (shape, mode), inputs = key, host.to(self._device)

        def warm() -> None:
            """A training pass must not change gradients: a zeroed table has no adapter rows, and makes the same launches."""
            if mode != FORWARD:
                inputs.zero_()
            launch(shape, inputs, mode)

        held = self._pool_holds(shape, mode)
        self._captured.capture(key, inputs, lambda: launch(shape, inputs, mode), None if held else warm)

    def _pool_holds(self, shape: BatchShape, mode: PassMode) -> bool:
        """Whether a pass that took no less memory was captured before, so that this one finds its memory in the pool: no fewer
        tokens and labels, adapters as wide, dropout if this one has it, and activations saved if this one saves them."""
        return any(of in (mode, SAVED) and known.takes_as_much_as(shape) for known, of in self._captured)
