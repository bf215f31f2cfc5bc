"""Device cost of a search's training passes, by part, from a sample of the passes measured again.

Each runs several times: one that the executor captures is captured here too, before it is timed.
"""

from collections.abc import Sequence
from statistics import fmean

import torch

from benchmarks.pass_timing import afresh, base_segments
from benchmarks.result_file import median_ms
from worker.model.arena import Slot, rows_for
from worker.model.cuda.batches.label_batch import Labels
from worker.model.cuda.device_trainer import DeviceTrainer
from worker.model.cuda.fused_head import head_loss
from worker.model.cuda.pass_graphs import CAPTURE_AFTER
from worker.model.flat_batch import Segment

MOST = 12  # passes to measure again
REPEATS = 5


def device_ms(trainer: DeviceTrainer, sampled: Sequence[Sequence[Segment]]) -> dict[str, float]:
    """Mean device milliseconds of a training pass: base, lora (what adapters add to it), loss (head and cross entropy).

    The trainer's arena must be empty.
    """
    parts: dict[str, list[float]] = {"base": [], "lora": [], "loss": []}
    for segments in sampled[:: max(1, -(-len(sampled) // MOST))]:
        whole, alone = _with_and_without(trainer, segments)
        loss = _head_ms(trainer, sum(example.labels for segment in segments for example in segment.examples))
        parts["base"].append(alone - loss)
        parts["lora"].append(max(0.0, whole - alone))
        parts["loss"].append(loss)
    return {name: fmean(values) for name, values in parts.items()}


def _with_and_without(trainer: DeviceTrainer, segments: Sequence[Segment]) -> tuple[float, float]:
    """(a pass with its adapters, the same pass of the base alone) in milliseconds."""
    slots: dict[Slot, Slot] = {}
    arena = trainer.arena
    old = {segment.slot for segment in segments if segment.slot is not None}
    arena.grow(max(arena.rows, arena.rows_used + sum(rows_for(slot.rank) for slot in old)))
    for slot in sorted(old, key=lambda slot: slot.slot_id):
        slots[slot] = own = arena.attach(slot.rank, slot.scale * slot.rank)
        arena.master[own.used].normal_(std=0.02)
        arena.touched(own)
    moved = [Segment(slots[s.slot] if s.slot is not None else None, s.examples, s.loss_weight) for s in segments]
    bare = base_segments(segments)
    whole = median_ms(lambda: afresh(trainer, moved), REPEATS, CAPTURE_AFTER)[0]
    alone = median_ms(lambda: afresh(trainer, bare), REPEATS, CAPTURE_AFTER)[0]
    for slot in slots.values():
        arena.detach(slot)
    return whole, alone


def _head_ms(trainer: DeviceTrainer, count: int) -> float:
    backbone = trainer.backbone
    device, width = backbone.device, backbone.embedding.shape[1]
    hidden = torch.randn(count, width, device=device, dtype=backbone.embedding.dtype)
    labels = Labels(
        tokens=torch.randint(0, backbone.embedding.shape[0], (count,), device=device, dtype=torch.int32),
        loss_weights=torch.full((count,), 1 / count, device=device),
        bounds=torch.tensor([0, count], device=device, dtype=torch.int32),
    )
    return median_ms(lambda: head_loss(hidden, backbone.head, labels, with_gradient=True), REPEATS)[0]
