"""Captured graphs of short passes: when a bucket is captured, and which captured bucket takes a pass of another one.

A pass of a bucket that is not captured is launched, which wastes about one replayed pass; a capture costs about two. So a
bucket is captured once its passes have wasted as much as that: the ski-rental rule, never worse than twice the best in
hindsight. Of a training pass forward and backward are captured, two graphs; the label tail between them is launched each time,
over exactly the pass's labels: they would be a second dimension of buckets, with padding of its own. Knows shapes and who
launches a pass; knows no adapters and no tasks.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Literal, Protocol, get_args

import torch
from grouped_lora.work_table import TILE_WIDTHS
from torch import Tensor

from worker.model.cuda.batches.device_batch import BatchShape
from worker.model.cuda.batches.label_batch import LabelBatch
from worker.model.cuda.captured_graphs import CapturedGraphs
from worker.model.cuda.fused_pass import ForwardDone
from worker.model.cuda.label_tail import PassResult, TailGradient, TailInput
from worker.model.cuda.layers.saved_activations import AttentionOutput, AttentionOutputGradient, Hidden

MAX_GRAPHS = 64
PassMode = Literal["saved", "recomputed", "forward"]  # a training pass saves its activations or recomputes them
SAVED, RECOMPUTED, FORWARD = get_args(PassMode)
# In replayed passes. Both depend on the host: a launch wasted 0.6 and 1.2, a capture 2.1 and 2.7 (docs/NUMERICS.md, Captured or
# launched). Padding is taken where it is less than what a launch wasted at least.
LAUNCH_WASTES, CAPTURE_COSTS, MOST_PADDING = 1.0, 2.0, 0.6
CAPTURE_AFTER = 3  # passes of a bucket, the last of which captures it, where no other bucket takes one
assert (CAPTURE_AFTER - 1) * LAUNCH_WASTES == CAPTURE_COSTS


class Launcher(Protocol):
    """Launches a pass from its uploaded buffer, as a whole or in parts. The tail takes where to write the gradient of what it
    reads; None: there is none."""

    def launch(self, shape: BatchShape, flat: Tensor, labels: LabelBatch, mode: PassMode) -> PassResult: ...
    def launch_tail_input(self, shape: BatchShape, flat: Tensor) -> TailInput: ...
    def launch_forward(self, shape: BatchShape, flat: Tensor, mode: PassMode) -> tuple[TailInput, ForwardDone]: ...
    def launch_tail(self, given: TailInput, labels: LabelBatch, out: TailGradient | None) -> PassResult: ...
    def launch_backward(self, done: ForwardDone) -> None: ...


class PassGraphs:
    """most_tokens: of a pass. whole_tokens: of one whose last layer is before the tail. widths: of hidden states, and of
    attention's output."""

    def __init__(
        self, device: torch.device, most_tokens: int, whole_tokens: int, widths: tuple[int, int], dtype: torch.dtype
    ) -> None:
        self._device, self._most_tokens, self._whole_tokens = device, most_tokens, whole_tokens
        self._widths, self._dtype = widths, dtype
        self._captured = CapturedGraphs[tuple[BatchShape, PassMode], None](device, MAX_GRAPHS)
        self._wasted = defaultdict[tuple[BatchShape, PassMode], float](float)  # replayed passes, of buckets not captured
        # since graphs were last forgotten: their kernels are loaded, and what passes took at most counts their memory
        self._launched = set[tuple[BatchShape, PassMode]]()
        # which all graphs share: what a forward left for the tail, and its gradient, with a row more than tokens
        self._ends: tuple[AttentionOutput, AttentionOutputGradient] | None = None

    @property
    def shapes(self) -> list[BatchShape]:
        """The buckets that have a captured graph."""
        return [shape for shape, _ in self._captured]

    def belong_to(self, buffers: Sequence[int]) -> None:
        """The passes read and write these buffers, by address: graphs of others are forgotten."""
        if self._captured.belong_to(buffers):
            self._launched.clear()

    def forget(self) -> None:
        self._captured.forget()
        self._launched.clear()
        self._ends = None

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

    def run(self, shape: BatchShape, host: Tensor, labels: LabelBatch, mode: PassMode, launcher: Launcher) -> PassResult:
        """A pass from its buffer in pinned memory and its labels on the device: launched, or replayed. Its bucket is captured
        if that is due; it was launched before, so that its kernels are compiled and loaded."""
        key = (shape, mode)
        if key not in self._captured:
            if self._wasted[key] < CAPTURE_COSTS or key not in self._launched:
                self._wasted[key] += LAUNCH_WASTES
                self._launched.add(key)
                return launcher.launch(shape, host.to(self._device, non_blocking=True), labels, mode)
            del self._wasted[key]
            self._capture(key, host, launcher)
        return self._replay(key, host, labels, launcher)

    def _replay(self, key: tuple[BatchShape, PassMode], host: Tensor, labels: LabelBatch, launcher: Launcher) -> PassResult:
        shape, mode = key
        self._captured.replay(key, host)
        given, gradient = self._shared_ends(shape)
        result = launcher.launch_tail(given, labels, None if mode == FORWARD else gradient)
        if mode != FORWARD:
            self._captured.replay_rest(key)
        return result

    def whole(self, shape: BatchShape) -> bool:
        """Whether a pass of this bucket has its last layer before the tail."""
        return shape.tokens <= self._whole_tokens

    def _shared_ends(self, shape: BatchShape) -> tuple[TailInput, TailGradient]:
        """Where a pass of this bucket has what its tail reads, of T tokens, and the gradient of it, of T + 1."""
        assert shape.tokens <= self._most_tokens, "longer passes are launched"
        if self._ends is None:
            hidden, attended = self._widths

            def room(width: int) -> Tensor:
                return torch.empty((self._most_tokens + 1, width), dtype=self._dtype, device=self._device)

            output = AttentionOutput(room(hidden), room(attended))
            self._ends = output, AttentionOutputGradient(room(hidden), room(attended), room(TILE_WIDTHS[-1]))
        (x, attended_to), (dx, dout, ds) = self._ends
        tokens, rows, rank = shape.tokens, shape.tokens + 1, shape.classes[-1].rank_class
        if self.whole(shape):
            return Hidden(x[:tokens]), Hidden(dx[:rows])
        assert ds is not None, "there is room for the widest"
        own = ds.view(-1)[: rows * rank].view(rows, 1, rank) if rank else None
        return AttentionOutput(x[:tokens], attended_to[:tokens]), AttentionOutputGradient(dx[:rows], dout[:rows], own)

    def _capture(self, key: tuple[BatchShape, PassMode], host: Tensor, launcher: Launcher) -> None:
        (shape, mode), inputs = key, host.to(self._device, non_blocking=True)
        (given, gradient), done = self._shared_ends(shape), list[ForwardDone]()

        def leave(found: TailInput) -> None:
            for own, its in zip(given, found, strict=True):
                own.copy_(its)

        def forward() -> None:
            if mode == FORWARD:
                leave(launcher.launch_tail_input(shape, inputs))
                return
            found, state = launcher.launch_forward(shape, inputs, mode)
            leave(found)
            done.append(state)

        def backward() -> None:
            state = done.pop()
            state.gradient = _of_tokens(gradient)
            launcher.launch_backward(state)

        def warm() -> None:
            """A training pass must not change gradients: a zeroed table has no adapter rows, and makes the same launches."""
            if mode != FORWARD:
                inputs.zero_()
            forward()
            if mode != FORWARD:
                backward()

        held = self._pool_holds(shape, mode)
        self._captured.capture(key, inputs, forward, None if held else warm, None if mode == FORWARD else backward)

    def _pool_holds(self, shape: BatchShape, mode: PassMode) -> bool:
        """Whether a pass that took no less memory was captured before, so that this one finds its memory in the pool: no fewer
        tokens, adapters as wide, dropout if this one has it, activations saved if this one saves them, and the last layer whole
        if this one has it so."""
        return any(
            of in (mode, SAVED) and known.takes_as_much_as(shape) and self.whole(known) >= self.whole(shape)
            for known, of in self._captured
        )


def _of_tokens(gradient: TailGradient) -> TailGradient:
    """Without the last row, which takes what padding labels have."""
    if isinstance(gradient, Hidden):
        return Hidden(gradient.h[:-1])
    ds = gradient.ds[:-1] if gradient.ds is not None else None
    return AttentionOutputGradient(gradient.dx[:-1], gradient.dout[:-1], ds)
