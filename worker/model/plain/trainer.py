"""Trainer: one micro-batch of many jobs through the backbone and back into the arena. Decides nothing: no schedule, no data.

`train` adds gradients, `update` takes the optimizer step, `evaluate` runs the forward alone.
"""

import math
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
import torch
from grouped_lora import Adapters, Span
from torch import Tensor

from contract.job_config import MODULES
from worker.model.arena import ROW_MULTIPLE, AdapterState, Arena, Slot
from worker.model.arena_layout import Layout
from worker.model.backbone import Backbone
from worker.model.example import Example
from worker.model.flat_batch import FlatBatch, Segment
from worker.model.out_of_memory import is_out_of_memory
from worker.model.peak_memory import peak_bytes
from worker.model.plain.lm_head import LabelLoss, backward_from
from worker.model.row_optimizer import RowUpdate, update_rows


@dataclass(frozen=True)
class LossSum:
    """total: sum of -log p over `labels` labels; hits: how many of these are their logits' argmax. Scalars that stay on the
    device until read."""

    total: Tensor
    labels: int
    hits: Tensor

    def __add__(self, other: "LossSum") -> "LossSum":
        return LossSum(self.total + other.total, self.labels + other.labels, self.hits + other.hits)


@dataclass(frozen=True)
class StepLosses:
    """totals [n]: losses on the device that decide who is updated, of the step or of unread ones before it; update_indices:
    to which of a step's updates each belongs."""

    totals: Tensor
    update_indices: tuple[int, ...]


class Moment(Protocol):
    """A point in the time of a device: it has done all that it was given until then."""

    def seconds_since(self, earlier: Any) -> float:
        """Between two moments of one trainer. Waits until the device is there."""


@dataclass(frozen=True)
class HostMoment:
    """Of a device that the host waits for in each call. at: by time.monotonic."""

    at: float

    def seconds_since(self, earlier: "HostMoment") -> float:
        return self.at - earlier.at


class OutOfMemory(RuntimeError):
    """The device had no memory for a pass. Its results and all gradients of its step are void: the caller may repeat the step
    in smaller micro-batches, or with activations recomputed. recompute: the failed pass recomputed them already.
    sole_placement: that of the one piece in the pass, if it held only one."""

    def __init__(self, tokens: int, recompute: bool = False) -> None:
        super().__init__(f"out of device memory in a pass of {tokens} tokens")
        self.tokens, self.recompute = tokens, recompute
        self.sole_placement: str | None = None


class Trainer:
    """The plain path: each operation is a call of PyTorch, on any device. It is also the base class of DeviceTrainer
    (model/cuda/device_trainer.py), which a GPU gets where kernels run the family (replicas/base_loader.py): that one overrides
    `_train_pass`, `_forward_pass`, `update` and `discard_gradients`.

    `train` and `evaluate` raise OutOfMemory where the device has no memory for the pass. Any thread may call, one at a time.
    """

    launches_ahead = False  # whether `train` and `update` return while the device works, so that more may be given to it

    def __init__(self, backbone: Backbone, arena: Arena) -> None:
        self.backbone = backbone
        self.arena = arena
        self.forwards = 0  # training forwards of the backbone since the start
        self.profiles: dict[str, Any] = {}  # memory profiles that were measured or read, by their key: memory_profile.py
        self._anchor = torch.zeros((), device=backbone.device, requires_grad=True)  # see grouped_lora.Adapters

    def init_adapter(self, slot: Slot, seed: int, modules: Collection[str] = MODULES) -> None:
        """Give the slot its first weights: see `first_weights`."""
        self.arena.restore(slot, AdapterState(first_weights(self.arena.layout, slot.rank, seed, modules)))

    def sibling(self) -> "Trainer":
        """A trainer over the same frozen weights with an arena and caches of its own, by which a thread may measure memory.
        On a sharded base its passes gather nothing, so their losses mean nothing."""
        return Trainer(self.backbone.measured(), Arena(self.backbone.targets, ROW_MULTIPLE, self.backbone.device))

    def train(self, segments: Sequence[Segment], recompute: bool = False, shared: bool = False) -> list[LossSum]:
        """One forward and backward; each adapter's gradient of loss_weight * sum(-log p) is added to the arena's (on a
        GPU its first pass of a step overwrites the arena's instead: device_trainer.py).

        recompute: keep each layer's input alone and compute the layer again in backward (activation checkpointing, Chen et al.
        2016): a forward more, a fraction of the memory. The same bits on a CPU, the same to rounding on a GPU.

        shared: the segments are of several tasks. Such a pass has other bits on a GPU than one of its own anyway, and may be
        padded further there, so that it need not be launched anew (device_trainer.py).
        """
        self.forwards += 1
        return self._run(segments, True, recompute, shared)

    def evaluate(self, segments: Sequence[Segment]) -> list[LossSum]:
        """Losses of a pass without gradients. A pass that finds no memory is split in halves, and these again, down to single
        rows."""
        try:
            return self._run(segments, with_gradient=False)
        except OutOfMemory:
            count = sum(len(segment.examples) for segment in segments)
            if count < 2 or self.backbone.shards is not None:  # the other ranks are in the midst of this pass
                raise
            first, second = (self.evaluate(part) for part in _halved(segments, count // 2))
        return [a + b for a, b in zip(first, second, strict=True)]

    def on_device(self) -> AbstractContextManager[object]:
        """A context in which the thread's current device is this trainer's: our kernels launch there, wherever tensors lie."""
        device = self.backbone.device
        return torch.cuda.device(device) if device.type == "cuda" else nullcontext()

    def release_caches(self) -> None:
        """Memory ran out: wait until the device is idle, and release all caches."""
        if self.backbone.device.type == "cuda":
            torch.cuda.synchronize(self.backbone.device)
            torch.cuda.empty_cache()

    def _run(
        self, segments: Sequence[Segment], with_gradient: bool, recompute: bool = True, shared: bool = False
    ) -> list[LossSum]:
        try:
            with self.on_device(), self.backbone.gathers.one_pass(with_gradient):
                return self._train_pass(segments, recompute, shared) if with_gradient else self._forward_pass(segments)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
        # Outside the handler, whose traceback would keep the pass's tensors in memory.
        self.release_caches()
        if with_gradient:
            self.discard_gradients(segment.slot for segment in segments if segment.slot is not None)
        raise OutOfMemory(sum(example.length for segment in segments for example in segment.examples), recompute)

    def _train_pass(self, segments: Sequence[Segment], recompute: bool, shared: bool = False) -> list[LossSum]:
        batch = FlatBatch.of(segments, self.backbone.device)
        adapters = self.adapters(batch, self.arena.grad)
        hidden = self.backbone.hidden(self.backbone.embed(batch), batch, adapters, self.arena.layout, recompute)
        h_LK = self.backbone.final_norm(hidden[batch.label_indices])
        loss = self.backbone.label_loss(h_LK.detach(), batch.label_tokens, _loss_weights(batch))
        backward_from(h_LK, loss.dh_LK)  # the head has computed its own gradient; autograd goes on from there
        return _sums(loss, batch)

    def _forward_pass(self, segments: Sequence[Segment]) -> list[LossSum]:
        """Losses of a pass without gradients."""
        batch = FlatBatch.of(segments, self.backbone.device)
        with torch.no_grad():
            hidden = self.backbone.hidden(self.backbone.embed(batch), batch, self.adapters(batch, None), self.arena.layout)
            h_LK = self.backbone.final_norm(hidden[batch.label_indices])
            return _sums(self.backbone.label_loss(h_LK, batch.label_tokens, None), batch)

    def activation_bytes(self, tokens: int, row_tokens: int = 256, recompute: bool = False) -> int:
        """Peak bytes of tensors in one training pass of `tokens` tokens in rows of `row_tokens`, adapters aside (measured).

        Raises OutOfMemory.
        """
        segments = probe(tokens, row_tokens)
        known = [self.arena.master, self.arena.grad, *self.backbone.tensors()]
        try:
            return peak_bytes(lambda: self._train_pass(segments, recompute), known)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            raise OutOfMemory(tokens, recompute) from None

    def update(self, updates: Sequence[RowUpdate], losses: StepLosses | None = None) -> list[Tensor]:
        """One optimizer step per adapter; its gradient counts no more afterwards. Returns the gradient norms before clipping.

        losses: an adapter with one that is not finite keeps its weights and moments.
        """
        non_finite = set[int]()
        if losses is not None:
            totals = losses.totals.tolist()
            non_finite = {index for index, total in zip(losses.update_indices, totals, strict=True) if not math.isfinite(total)}
        with torch.no_grad():
            return [update_rows(self.arena, update) for place, update in enumerate(updates) if place not in non_finite]

    def read_later(self, values: Tensor) -> Callable[[], list[float]]:
        """Begin to copy values [n] to the host; the result returns them, and waits for the copy alone."""
        return values.tolist

    def moment(self) -> Moment:
        """When the device will have done all that it was given until now."""
        return HostMoment(time.monotonic())

    def discard_gradients(self, slots: Iterable[Slot]) -> None:
        """Void these adapters' gradients, as before the first pass of a step."""
        for slot in slots:
            self.arena.grad[slot.used].zero_()

    def adapters(self, batch: FlatBatch, grad: Tensor | None) -> Adapters:
        """Which tokens of the batch belong to which rows of the arena. grad: where gradients go, None for a pass without."""
        spans = tuple(
            Span(start, stop, segment.slot.row, segment.slot.rank, segment.slot.scale, segment.dropout_probability)
            for (start, stop), segment in zip(batch.ranges, batch.segments, strict=True)
            if segment.slot is not None and stop > start
        )
        return Adapters(self.arena.master, grad, spans, self._anchor, batch.keys)


def first_weights(
    layout: Layout, rank: int, seed: int, modules: Collection[str] = MODULES, into: Tensor | None = None
) -> Tensor:
    """An adapter's first weights on the host, float32 [rank, W]: A ~ U(-1/sqrt(in), 1/sqrt(in)), B = 0, as PEFT does. Drawn
    target by target, from the seed alone.

    Matrices that are not among `modules` get A = 0 too, and so stay without an adapter: neither factor has a gradient.
    into: the memory to draw them in; None: new memory.
    """
    generator = torch.Generator().manual_seed(seed)
    rows_RW = torch.zeros(rank, layout.width) if into is None else into.zero_()
    for target, (a_RK, _) in zip(layout.targets, layout.split(rows_RW).values(), strict=True):
        bound = 1 / math.sqrt(target.in_features) if target.module in modules else 0.0
        a_RK.copy_(torch.empty(a_RK.shape).uniform_(-bound, bound, generator=generator))
    return rows_RW


def probe(tokens: int, row_tokens: int, slot: Slot | None = None) -> list[Segment]:
    """A pass of the base, or of an adapter, over `tokens` tokens in rows of `row_tokens`, each token a label."""
    lengths = [row_tokens] * (tokens // row_tokens) + [tokens % row_tokens]
    return [Segment(slot, [Example(np.zeros(n + 1, np.int32), np.arange(n + 1) > 0) for n in lengths if n])]


def _halved(segments: Sequence[Segment], count: int) -> tuple[list[Segment], list[Segment]]:
    """The same segments twice: with their first `count` rows, and with the others."""
    first, second = [], []
    for segment in segments:
        kept = min(count, len(segment.examples))
        count -= kept
        first.append(replace(segment, examples=segment.examples[:kept]))
        second.append(replace(segment, examples=segment.examples[kept:]))
    return first, second


def _loss_weights(batch: FlatBatch) -> Tensor:
    counts = [stop - start for start, stop in pairwise(batch.label_bounds)]
    weights = np.repeat([segment.loss_weight for segment in batch.segments], counts)
    return torch.from_numpy(weights.astype(np.float32)).to(batch.tokens.device)


def _sums(loss: LabelLoss, batch: FlatBatch) -> list[LossSum]:
    edges = pairwise(batch.label_bounds)
    return [LossSum(loss.nll_L[start:stop].sum(), stop - start, loss.hits_L[start:stop].sum()) for start, stop in edges]
