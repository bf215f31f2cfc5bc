"""Correctness gate of the sweeps: jobs packed on the device learn what each learns alone on a CPU in float32."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from worker.data.row_reader import example
from worker.model.arena import Arena, Slot
from worker.model.backbone import Backbone
from worker.model.example import Example
from worker.model.flat_batch import Segment
from worker.model.plain.trainer import Trainer
from worker.model.row_optimizer import RowUpdate
from worker.replicas.base_loader import DeviceBase

STEPS = 8
SETTINGS = ((16, 2e-4, 2), (64, 5e-5, 4), (32, 1e-4, 8))  # rank, learning rate, batch size
TOLERANCE = {"cpu": 1e-5, "cuda": 0.02}  # relative, of losses; bf16 under a float32 adapter on a GPU


def run_gate(base: DeviceBase, model: Path) -> dict[str, Any]:
    """{tolerance, worst_error, compared, passed} over the losses of STEPS steps of three jobs."""
    texts = [{"prompt": f"{n} and {n + 7} make", "completion": f" {2 * n + 7}, as anybody can count."} for n in range(64)]
    examples = [example(tokens) for (tokens,) in base.reader.read(texts)]
    device = base.trainer.backbone.device.type
    slots = [base.trainer.arena.attach(rank, 2.0 * rank) for rank, _, _ in _grown(base)]
    packed = _losses(base.trainer, slots, examples, range(len(SETTINGS)))
    for slot in slots:
        base.trainer.arena.detach(slot)
    alone: list[list[float]] = []
    plain = Backbone.load(model, "cpu", torch.float32)
    for job, (rank, _, _) in enumerate(SETTINGS):
        trainer = Trainer(plain, Arena(plain.targets, 64))
        alone += _losses(trainer, [trainer.arena.attach(rank, 2.0 * rank)], examples, [job])
    pairs = [(x, y) for xs, ys in zip(packed, alone, strict=True) for x, y in zip(xs, ys, strict=True)]
    worst = max(abs(x - y) / y for x, y in pairs)
    tolerance = TOLERANCE[device]
    return {"tolerance": tolerance, "worst_error": worst, "compared": len(pairs), "passed": worst <= tolerance}


def _grown(base: DeviceBase) -> tuple[tuple[int, float, int], ...]:
    arena = base.trainer.arena
    arena.grow(max(arena.rows, arena.rows_used + sum(rank for rank, _, _ in SETTINGS)))
    return SETTINGS


def _losses(trainer: Trainer, slots: Sequence[Slot], examples: list[Example], jobs: Sequence[int]) -> list[list[float]]:
    """Mean losses of every step, by job. Batches depend only on the job and the step."""
    for job, slot in zip(jobs, slots, strict=True):
        trainer.init_adapter(slot, 11 + job)
    found: list[list[float]] = [[] for _ in slots]
    for step in range(STEPS):
        segments = []
        for job, slot in zip(jobs, slots, strict=True):
            size = SETTINGS[job][2]
            rows = [examples[(step * size + place) * (job + 1) % len(examples)] for place in range(size)]
            segments.append(Segment(slot, rows, 1 / sum(row.labels for row in rows)))
        for losses, loss in zip(found, trainer.train(segments), strict=True):
            losses.append(float(loss.total) / loss.labels)
        trainer.update([RowUpdate(slot, SETTINGS[job][1], 0.01, step + 1, 1.0) for job, slot in zip(jobs, slots, strict=True)])
    return found
