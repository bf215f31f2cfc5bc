"""Motet: each rank trains its own adapters over its shards of the base, by the worker's trainer, packed step and gathers."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.sharded.contestant import Contestant, Given
from benchmarks.sharded.reference import AdapterOutcome
from benchmarks.sharded.workload import CLIP, DECAY, RANK, RATE, SCALE, Factors, Workload, first_factors
from contract.job_config import JobConfig
from worker.data.dataset import DataSet, TokenRows
from worker.model.arena import Arena, Slot
from worker.model.backbone import Backbone
from worker.model.cuda.device_arena import DeviceArena
from worker.model.cuda.device_trainer import DeviceTrainer
from worker.model.example import Example
from worker.model.plain.trainer import Trainer
from worker.model.row_optimizer import RowUpdate
from worker.model.sharding.rank_collectives import Finish
from worker.model.sharding.weight_shards import Sharding
from worker.policy.activations import Activations
from worker.policy.job_record import JobKey
from worker.replicas.packed_step import step
from worker.replicas.training_job import JobStep, TrainingJob

PASS_TOKENS = 4096  # of a micro-batch: the longest that the worker leaves room for as it chooses which layers to shard
STEPS = 10**6  # of a job: none ends here


class NoGathers:
    """In place of RankCollectives: ranks agree, but nothing is sent."""

    def __init__(self, collectives: Any) -> None:
        self.most = collectives.most

    def gather(self, whole: Tensor, part: Tensor) -> Finish:
        return lambda: None


class Motet(Contestant):
    note = "adapters spread over ranks; gathers on a side stream"

    def __init__(self, given: Given) -> None:
        super().__init__(given)
        rank, plan, device = given.rank, given.plan, given.rank.device
        sharding = Sharding(rank.number, rank.world, frozenset(plan.layers), plan.ends) if plan is not None else None
        backbone = Backbone.of(given.model, device, sharding=sharding)  # type: ignore[arg-type]
        if backbone.shards is not None:
            backbone.shards.connect(rank.collectives)
        rows = RANK * len(rank.own_adapters)
        if device.type == "cuda":
            self.trainer: Trainer = DeviceTrainer(backbone, DeviceArena(backbone.targets, rows, device, torch.bfloat16))
        else:
            self.trainer = Trainer(backbone, Arena(backbone.targets, rows, device))
        self._slots: dict[int, Slot] = {}
        for adapter in rank.own_adapters:
            self._slots[adapter] = self.trainer.arena.attach(RANK, SCALE * RANK)
            self._restore(adapter)
        self._due: list[JobStep] = []

    def _restore(self, adapter: int) -> None:
        """The adapter's first weights."""
        arena, slot = self.trainer.arena, self._slots[adapter]
        drawn = first_factors(self.given.model.shape, adapter, self.given.rank.device)
        for (a, b), (first_a, first_b) in zip(arena.layout.split(arena.master[slot.used]).values(), drawn, strict=True):
            a.copy_(first_a)
            b.copy_(first_b)
        if isinstance(arena, DeviceArena):
            arena.touched(slot)

    def prepare(self, work: Workload) -> None:
        mask = np.arange(work.tokens + 1) > work.tokens - work.labels
        activations = Activations(self.given.recompute, "as in every contestant")
        self._due = []
        for adapter, slot in self._slots.items():
            rows = TokenRows([Example(row, mask) for row in work.rows(adapter)])
            config = JobConfig(
                learning_rate=RATE, rank=RANK, alpha=SCALE * RANK, batch_size=work.batch, seed=adapter, weight_decay=DECAY
            )
            data = DataSet(rows, rows, 1, 0, 0, 0)
            job = TrainingJob(JobKey("sharded", adapter), config, data, STEPS, CLIP, activations)
            self._due.append(JobStep(job, slot, 0))

    def step(self) -> list[float]:
        stepped = step(self.trainer, self._due, PASS_TOKENS, lambda: None)
        self._due = [replace(one, number=one.number + 1) for one in self._due]
        return [stepped.losses[one.job.key] for one in self._due]

    def outcomes_of(self, work: Workload) -> Mapping[int, AdapterOutcome]:
        self.prepare(work)
        for adapter in self._slots:
            self._restore(adapter)
        with _noted(self.trainer) as gradients:
            losses = self.step()
        return {
            adapter: AdapterOutcome(loss, gradients[slot.row])
            for (adapter, slot), loss in zip(self._slots.items(), losses, strict=True)
        }

    def close(self) -> None:
        self.given.rank.collectives.unshare()

    def without_gathers(self) -> AbstractContextManager[None]:
        return self._skipping()

    @contextmanager
    def _skipping(self) -> Iterator[None]:
        shards = self.trainer.backbone.shards
        assert shards is not None, "a base of which nothing is sharded has no gathers"
        real = shards.collectives
        shards.collectives = NoGathers(real)  # type: ignore[assignment]
        try:
            yield
        finally:
            shards.collectives = real


@contextmanager
def _noted(trainer: Trainer) -> Iterator[dict[int, list[Factors]]]:
    """The gradients that an update within it reads, by the first row of each adapter."""
    noted: dict[int, list[Factors]] = {}
    real: Callable[..., list[Tensor]] = trainer.update

    def update(updates: Sequence[RowUpdate], *losses: Any) -> list[Tensor]:
        for one in updates:
            noted[one.slot.row] = list(trainer.arena.layout.split(trainer.arena.grad[one.slot.used].clone()).values())
        return real(updates, *losses)

    trainer.update = update  # type: ignore[method-assign, assignment]
    try:
        yield noted
    finally:
        trainer.update = real  # type: ignore[method-assign]
