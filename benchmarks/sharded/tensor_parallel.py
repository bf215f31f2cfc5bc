"""Tensor parallelism with all adapters in one batch, by DTensor's plan for a decoder: q, k, v, gate and up split by columns, o
and down by rows, two sums over ranks a layer in each direction.

The sums are plain collectives, which spares DTensor's dispatch. Adapters are split like their matrices, and their part is added
before the sum, so they need no other. Each rank computes the head for a share of the adapters.
"""

from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from benchmarks.sharded.adapter_bank import AdapterBank
from benchmarks.sharded.contestant import Given
from benchmarks.sharded.fsdp import Rival, by_adapter, packed_rows
from benchmarks.sharded.plain_decoder import PlainModel
from benchmarks.sharded.reference import AdapterOutcome
from benchmarks.sharded.workload import ADAPTERS, Workload


class _Enter(torch.autograd.Function):
    """Into split products: each rank reads all of it, and gives back a part of its gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, dx: Tensor) -> Tensor:
        dx = dx.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(dx)
        return dx


class _Leave(torch.autograd.Function):
    """Out of split products: each rank has a part of the sum."""

    @staticmethod
    def forward(ctx: Any, y: Tensor) -> Tensor:
        ctx.mark_dirty(y)
        dist.all_reduce(y)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Tensor:
        return dy


class TensorParallel(Rival):
    note = "every rank has a part of each matrix and of each adapter; the same rows on all"

    def __init__(self, given: Given) -> None:
        super().__init__(given)
        shape, rank = given.model.shape, given.rank
        if shape.kv_heads % rank.world:
            raise ValueError(f"{shape.kv_heads} heads of keys cannot be split over {rank.world} ranks")
        part = rank.number, rank.world
        self.net = PlainModel(given.model, given.recompute, lambda index, layer: None, part, _Enter.apply, _Leave.apply)
        self.bank = AdapterBank(shape, ADAPTERS, rank.device, given.model.dtype, "whole copies", part)
        for adapter in range(ADAPTERS):
            self.bank.load(adapter, adapter)

    def prepare(self, work: Workload) -> None:
        own = self.given.rank.own_adapters
        self._own_rows = slice(own[0] * work.batch, (own[-1] + 1) * work.batch)
        self.load_rows(work, *packed_rows(work, range(ADAPTERS)))

    def step(self) -> list[float]:
        losses = self.run_pass(self._own_rows)
        self.bank.update()
        return by_adapter(losses, len(self.given.rank.own_adapters))

    def outcomes_of(self, work: Workload) -> Mapping[int, AdapterOutcome]:
        self.prepare(work)
        own = self.given.rank.own_adapters
        losses = by_adapter(self.run_pass(self._own_rows), len(own))
        gradients = [self.bank.gradients(adapter, self._gathered) for adapter in range(ADAPTERS)]
        self.bank.discard_gradients()
        return {adapter: AdapterOutcome(loss, gradients[adapter]) for adapter, loss in zip(own, losses, strict=True)}

    def _gathered(self, part: Tensor, dimension: int) -> Tensor:
        parts = [torch.empty_like(part) for _ in range(self.given.rank.world)]
        dist.all_gather(parts, part.contiguous())
        return torch.cat(parts, dimension)
