"""The trainer on a GPU: plain/trainer.py's interface over the fused pass, graphs for small micro-batches.

Nothing here waits for the device. Kernel launches limit small passes, so each of their buckets is captured once as a CUDA graph
and replayed; large passes are launched kernel by kernel (docs/NUMERICS.md has the crossover).
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from grouped_lora import Span
from grouped_lora.optimizer.adamw import RowTable, adamw
from grouped_lora.work_table import HostTable, holds
from torch import Tensor

from worker.model.arena import ROW_MULTIPLE, Slot
from worker.model.backbone import Backbone
from worker.model.cuda.batches.device_batch import COARSE, FINE, REPEATED, BatchShape, Grain, fill, tables, unpack
from worker.model.cuda.batches.label_batch import LabelBatch, upload_labels
from worker.model.cuda.batches.upload_buffer import pinned, upload
from worker.model.cuda.device_arena import DeviceArena
from worker.model.cuda.fused_pass import ForwardDone, FusedPass
from worker.model.cuda.label_tail import PassResult, TailGradient, TailInput
from worker.model.cuda.pass_graphs import FORWARD, RECOMPUTED, SAVED, PassGraphs, PassMode
from worker.model.flat_batch import FlatBatch, Segment
from worker.model.out_of_memory import is_out_of_memory
from worker.model.plain.trainer import LossSum, Moment, StepLosses, Trainer
from worker.model.row_optimizer import BETAS, EPS, RowUpdate

# Passes of fewer tokens take the host longer to launch than the chip to run, on layers of as many parameters as Llama-3.2-1B's;
# on larger ones, whose launches are as many, fewer tokens do.
GRAPH_TOKENS, LAYER_PARAMETERS = 4096, 61e6
# On the fastest chips up to this many: a pass of 6,000 tokens took 58 ms on an H200 and its host 57.6 to launch, in fp8 45 and
# 71. They are captured in coarse buckets; 8,192 tokens keep about 8 GB of activations on that shape, hence the least memory.
FAST_GRAPH_TOKENS = 8192
FAST_CAPABILITY, FAST_MEMORY = (9, 0), 64 * 2**30
_REPEATED_PART = 0.25  # of these tokens: a shorter pass takes so little that captures pay late, so its buckets are fewer


@dataclass(frozen=True)
class DeviceMoment:
    """By the device's own clock: the host may be far ahead. event: recorded with its time."""

    event: torch.cuda.Event

    def seconds_since(self, earlier: "DeviceMoment") -> float:
        self.event.synchronize()
        milliseconds: float = earlier.event.elapsed_time(self.event)
        return milliseconds / 1e3


class DeviceTrainer(Trainer):
    """Overrides `_train_pass` and `_forward_pass`, which `Trainer.train` and `evaluate` call, `update` and
    `discard_gradients`."""

    arena: DeviceArena
    launches_ahead = True

    def __init__(self, backbone: Backbone, arena: DeviceArena) -> None:
        super().__init__(backbone, arena)
        self._fused = FusedPass(backbone, arena.layout, backbone.max_positions)
        self.graph_tokens = _graph_tokens(backbone)
        widths = backbone.embedding.shape[1], self._fused.stack.dims.q_width
        short = int(_REPEATED_PART * self.graph_tokens)
        self.graphs = PassGraphs(backbone.device, self.graph_tokens, short, widths, backbone.embedding.dtype)

    @property
    def captured(self) -> list[BatchShape]:
        """The buckets that have a captured graph."""
        return self.graphs.shapes

    def sibling(self) -> "DeviceTrainer":
        device, dtype = self.backbone.device, self.arena.compute_copy.dtype
        return DeviceTrainer(self.backbone.measured(), DeviceArena(self.backbone.targets, ROW_MULTIPLE, device, dtype))

    def discard_gradients(self, slots: Iterable[Slot]) -> None:
        """Writes no zeros: the next pass overwrites the gradients of a slot that is not in `arena.slots_with_gradient`,
        and adds to the others."""
        for slot in slots:
            self.arena.slots_with_gradient.discard(slot)

    def update(self, updates: Sequence[RowUpdate], losses: StepLosses | None = None) -> list[Tensor]:
        if not updates:
            return []
        try:
            with self.on_device():
                return self._update(updates, losses)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
        # Nothing was updated: all allocations precede the first kernel that writes to the arena, and are small.
        self.release_caches()
        with self.on_device():
            return self._update(updates, losses)

    def read_later(self, values: Tensor) -> Callable[[], list[float]]:
        with self.on_device():
            copied = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
            copied.copy_(values, non_blocking=True)
            done = torch.cuda.Event()
            done.record()

        def read() -> list[float]:
            done.synchronize()
            found: list[float] = copied.tolist()
            return found

        return read

    def moment(self) -> Moment:
        with self.on_device():
            event = torch.cuda.Event(enable_timing=True)
            event.record()
        return DeviceMoment(event)

    def _update(self, updates: Sequence[RowUpdate], losses: StepLosses | None) -> list[Tensor]:
        arena = self.arena
        for update in updates:
            # no pass has written its gradient since the last update: what lies there is stale
            if update.slot not in arena.slots_with_gradient:
                arena.clear_gradient(update.slot)
        ranks = [update.slot.rank for update in updates]
        rates = [
            [u.learning_rate, u.weight_decay, 1 - BETAS[0] ** u.step, 1 - BETAS[1] ** u.step, u.max_grad_norm] for u in updates
        ]
        rows = self._up(np.concatenate([np.arange(update.slot.row, update.slot.row + update.slot.rank) for update in updates]))
        update_of_row = self._up(np.repeat(np.arange(len(updates)), ranks))
        firsts = self._up(np.cumsum([0, *ranks]))
        if losses is not None and losses.update_indices:
            non_finite = torch.zeros(len(updates), device=rows.device)
            non_finite.index_add_(0, self._up(np.array(losses.update_indices)), (~torch.isfinite(losses.totals)).float())
            rows = torch.where(non_finite.index_select(0, update_of_row) == 0, rows, -1)
        table = RowTable(rows, update_of_row, firsts, self._up(np.array(rates, np.float32)))
        master, compute_copy, *moments = (
            arena.layered(buffer) for buffer in (arena.master, arena.compute_copy, *arena.moments.buffers)
        )
        arena.await_snapshots()
        norms = adamw(master, arena.gradient, tuple(moments), compute_copy, table, BETAS, EPS)
        for update in updates:
            arena.slots_with_gradient.discard(update.slot)
        return list(norms[:, 0])

    def _up(self, values: np.ndarray) -> Tensor:
        """An asynchronous upload: fp32 as it is, all else as int32."""
        narrow = values if values.dtype == np.float32 else values.astype(np.int32)
        return upload(narrow, self.backbone.device)

    def release_caches(self) -> None:
        torch.cuda.synchronize(self.backbone.device)
        self.graphs.forget()
        self._fused.stack.abandon()
        super().release_caches()

    def _train_pass(self, segments: Sequence[Segment], recompute: bool, shared: bool = False) -> list[LossSum]:
        return self._run_batch(segments, RECOMPUTED if recompute else SAVED, shared)

    def _forward_pass(self, segments: Sequence[Segment]) -> list[LossSum]:
        return self._run_batch(segments, FORWARD)

    def _run_batch(self, segments: Sequence[Segment], mode: PassMode, shared: bool = False) -> list[LossSum]:
        order = sorted(range(len(segments)), key=lambda place: _first_row(segments[place].slot))
        batch = FlatBatch.of([segments[place] for place in order])
        spans, slots = spans_of(batch.segments, batch.ranges)
        self.arena.refresh(slots)
        accumulate = tuple(slot in self.arena.slots_with_gradient for slot in slots)
        grain = self.grain(batch.size)
        table = tables(batch, spans, accumulate, grain)
        shape = BatchShape.of(batch, table, grain)
        if shape.tokens > self.graph_tokens:
            host, labels = self._uploads(shape, batch, table, spans, accumulate)
            result = self.launch(shape, host.to(self.backbone.device, non_blocking=True), labels, mode)
        else:  # graphs know the buffers' addresses, which change as the arena grows or shrinks
            arena = self.arena
            self.graphs.belong_to(tuple(buffer.data_ptr() for buffer in (arena.compute_copy, arena.grad, arena.squares)))
            for larger in self.graphs.larger(shape, mode) if shared else ():
                wider = tables(batch, spans, accumulate, grain, larger.tokens)
                if holds(larger.classes, wider.sizes):
                    self.graphs.waste(shape, mode, larger)
                    shape, table = larger, wider.padded(larger.classes)
                    break
            host, labels = self._uploads(shape, batch, table, spans, accumulate)
            result = self.graphs.run(shape, host, labels, mode, self)
        if mode != FORWARD:
            self.arena.slots_with_gradient.update(slots)
        sums, hits = result.sums.neg(), result.hits
        counts = [stop - start for start, stop in pairwise(batch.label_bounds)]
        found = {place: LossSum(sums[at], counts[at], hits[at]) for at, place in enumerate(order)}
        return [found[place] for place in range(len(segments))]

    def grain(self, tokens: int) -> Grain:
        """How fine the bucket of a pass of `tokens` tokens is."""
        if tokens > self.graph_tokens:
            return FINE
        return COARSE if tokens > _REPEATED_PART * self.graph_tokens else REPEATED

    def _uploads(
        self, shape: BatchShape, batch: FlatBatch, table: HostTable, spans: Sequence[Span], accumulate: Sequence[bool]
    ) -> tuple[Tensor, LabelBatch]:
        """The pass's buffer in pinned memory, and its labels on their way to the device."""
        device = self.backbone.device
        return pinned(fill(shape, batch, table), device), upload_labels(batch, spans, accumulate, shape, device)

    def launch(self, shape: BatchShape, flat: Tensor, labels: LabelBatch, mode: PassMode) -> PassResult:
        """A whole pass. flat: its uploaded buffer."""
        batch, whole = unpack(shape, flat), self.graphs.whole(shape)
        if mode == FORWARD:
            return self._fused.evaluate(batch, labels, self._adapters, whole)
        return self._fused.train(batch, labels, self._adapters, self.arena.gradient, mode == RECOMPUTED, whole)

    def launch_tail_input(self, shape: BatchShape, flat: Tensor) -> TailInput:
        """What the tail reads, of a pass without a backward."""
        return self._fused.tail_input(unpack(shape, flat), self._adapters, self.graphs.whole(shape))

    def launch_forward(self, shape: BatchShape, flat: Tensor, mode: PassMode) -> tuple[TailInput, ForwardDone]:
        """What the tail reads, and what the backward does."""
        return self._fused.forward(unpack(shape, flat), self._adapters, mode == RECOMPUTED, self.graphs.whole(shape))

    def launch_tail(self, given: TailInput, labels: LabelBatch, out: TailGradient | None) -> PassResult:
        """out, of T + 1 rows: where the gradient of what is given is written; None: there is none."""
        if out is None:
            return self._fused.tail.evaluate(given, labels, self._adapters)
        return self._fused.tail.train(given, labels, self._adapters, self.arena.gradient, out)[0]

    def launch_backward(self, done: ForwardDone) -> None:
        """done: with the gradient of what the tail read."""
        self._fused.backward(done, self._adapters, self.arena.gradient)

    @property
    def _adapters(self) -> Tensor:
        return self.arena.layered(self.arena.compute_copy)


def _graph_tokens(backbone: Backbone) -> int:
    """Tokens up to which passes are captured; 0 on a sharded base, whose gathers are launched one by one."""
    if backbone.shards is not None:
        return 0
    fast = backbone.device.type == "cuda" and _is_fast(torch.cuda.get_device_properties(backbone.device))
    most, layer = FAST_GRAPH_TOKENS if fast else GRAPH_TOKENS, backbone.layers[0]
    parameters = sum(weight.shape.numel() for weight in (layer.w_qkv, layer.w_o, layer.w_gate_up, layer.w_down))
    return int(most * min(1.0, LAYER_PARAMETERS / parameters))


def _is_fast(device: Any) -> bool:
    return (device.major, device.minor) >= FAST_CAPABILITY and device.total_memory >= FAST_MEMORY


def _first_row(slot: Slot | None) -> int:
    return -1 if slot is None else slot.row


def spans_of(segments: Sequence[Segment], ranges: Sequence[tuple[int, int]]) -> tuple[tuple[Span, ...], list[Slot]]:
    """One span per slot: neighbouring segments of one slot are one span, since a span's gradient is written once.

    Raises ValueError where segments of one slot differ in their dropout's probability.
    """
    slots: list[Slot] = []
    probabilities: list[float] = []
    edges: list[list[int]] = []
    for segment, (start, stop) in zip(segments, ranges, strict=True):
        slot = segment.slot
        if slot is None or stop == start:
            continue
        if slots and slots[-1] is slot:
            if segment.dropout_probability != probabilities[-1]:
                one, other = probabilities[-1], segment.dropout_probability
                raise ValueError(f"the slot at row {slot.row} has dropout {one} in one segment and {other} in another")
            edges[-1][1] = stop
        else:
            slots.append(slot)
            probabilities.append(segment.dropout_probability)
            edges.append([start, stop])
    placed = zip(slots, edges, probabilities, strict=True)
    return tuple(Span(a, b, s.row, s.rank, s.scale, probability) for s, (a, b), probability in placed), slots
