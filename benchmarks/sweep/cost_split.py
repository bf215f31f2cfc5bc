"""Device cost of a search's training passes, by part, from a sample of the passes measured again."""

from collections.abc import Sequence
from statistics import fmean

import torch

from benchmarks.result_file import median_ms
from worker.model.arena import Slot, rows_for
from worker.model.cuda.device_trainer import DeviceTrainer
from worker.model.cuda.fused_head import Labels, head_loss
from worker.model.flat_batch import Segment
from worker.model.row_optimizer import RowUpdate
from worker.replicas.base_loader import BaseCopy

MOST = 12  # passes to measure again


def device_ms(base: BaseCopy, sampled: Sequence[Sequence[Segment]]) -> dict[str, float]:
    """Mean device milliseconds of a training pass: base, lora (what adapters add to it), loss (head and cross entropy),
    optimizer (clip and AdamW of its adapters).

    base's arena must be empty.
    """
    trainer = base.trainer
    assert isinstance(trainer, DeviceTrainer), "parts are measured on a GPU"
    parts: dict[str, list[float]] = {"base": [], "lora": [], "loss": [], "optimizer": []}
    for segments in sampled[:: max(1, len(sampled) // MOST)]:
        whole, alone = _with_and_without(trainer, segments)
        loss = _head_ms(trainer, sum(example.labels for segment in segments for example in segment.examples))
        parts["base"].append(alone - loss)
        parts["lora"].append(max(0.0, whole[0] - alone))
        parts["loss"].append(loss)
        parts["optimizer"].append(whole[1])
    return {name: fmean(values) for name, values in parts.items()}


def _with_and_without(trainer: DeviceTrainer, segments: Sequence[Segment]) -> tuple[tuple[float, float], float]:
    """((a pass with its adapters, their optimizer step), the same pass of the base alone) in milliseconds."""
    slots: dict[Slot, Slot] = {}
    arena = trainer.arena
    old = {segment.slot for segment in segments if segment.slot is not None}
    arena.grow(max(arena.rows, arena.rows_used + sum(rows_for(slot.rank) for slot in old)))
    for slot in sorted(old, key=lambda slot: slot.row):
        slots[slot] = arena.attach(slot.rank, slot.scale * slot.rank)
        trainer.init_adapter(slots[slot], slot.row)
    moved = [Segment(slots[s.slot] if s.slot is not None else None, s.examples, s.loss_weight) for s in segments]
    bare = [Segment(None, s.examples, s.loss_weight) for s in segments]
    updates = [RowUpdate(slot, 1e-4, 0.01, 3, 1.0) for slot in slots.values()]

    def update() -> None:
        arena.slots_with_gradient.update(slots.values())
        trainer.update(updates)

    whole, alone = median_ms(lambda: trainer.train(moved), 5)[0], median_ms(lambda: trainer.train(bare), 5)[0]
    stepped = median_ms(update, 5)[0]
    for slot in slots.values():
        arena.detach(slot)
    return (whole, stepped), alone


def _head_ms(trainer: DeviceTrainer, count: int) -> float:
    backbone = trainer.backbone
    device, width = backbone.device, backbone.embedding.shape[1]
    hidden = torch.randn(count, width, device=device, dtype=backbone.embedding.dtype)
    labels = Labels(
        indices=torch.arange(count, device=device, dtype=torch.int32),
        tokens=torch.randint(0, backbone.embedding.shape[0], (count,), device=device, dtype=torch.int32),
        loss_weights=torch.full((count,), 1 / count, device=device),
        bounds=torch.tensor([0, count], device=device, dtype=torch.int32),
    )
    return median_ms(lambda: head_loss(hidden, backbone.head, labels, with_gradient=True), 5)[0]
