"""Forward and backward of one batch, per cell: ours, the frozen base alone, torch grouped_mm and a PyTorch loop, in turns.

All share our base passes, attention and loss (contestants.py), so that a difference is the adapters'. Knows no optimizer and no
order of batches.
"""

import gc
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from benchmarks.contestants import GroupedLora, LoopLora, PeerPass
from benchmarks.llama_shapes import LlamaShape, Rows, attach, feed
from benchmarks.result_file import in_pairs, in_turns, median_ms
from benchmarks.roofline import adapter_floor, copy_bytes_per_s
from worker.model.backbone import Backbone
from worker.model.cuda.batches.device_batch import BatchShape, fill, tables, unpack
from worker.model.cuda.batches.label_batch import upload_labels
from worker.model.cuda.device_arena import DeviceArena
from worker.model.cuda.device_trainer import DeviceTrainer, spans_of
from worker.model.cuda.fused_pass import FusedPass
from worker.model.cuda.pass_graphs import CAPTURE_AFTER
from worker.model.flat_batch import FlatBatch, Segment

OURS, BASE, GROUPED, LOOP = "ours", "base alone", "torch grouped_mm, padded", "PyTorch loop"
OURS_FP8, BASE_FP8 = "ours, base in fp8", "base alone in fp8"
SOLO = "ours, one adapter after another, captured"
UNIFORM, MIXED, NEIGHBOURS = "all of rank 16", "one of rank 256", "those of rank 16 alone"


def new_trainer(backbone: Backbone, rows: int, eight_bit: bool = False) -> DeviceTrainer:
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    arena = DeviceArena(backbone.targets, rows, "cuda", torch.bfloat16, eight_bit)
    return DeviceTrainer(backbone, arena)


def afresh(trainer: DeviceTrainer, fed: Sequence[Segment]) -> None:
    """One pass as the first of a step: gradients are overwritten, not accumulated."""
    trainer.arena.slots_with_gradient.clear()
    trainer.train(fed)


def base_segments(fed: Sequence[Segment]) -> list[Segment]:
    """The same rows without adapters."""
    return [Segment(None, segment.examples, segment.loss_weight) for segment in fed]


def cell(
    trainer: DeviceTrainer, shape: LlamaShape, model: str, fed: list[Segment], batch: int, loop: bool, peers: bool = True
) -> list[dict[str, Any]]:
    """One row per contestant; `ms` are medians of blocks in rotation, each measured after its own warmup. Without `peers` ours
    and the base alone. `over_base`: ours over the base alone, pair by pair of neighbouring blocks."""
    base = base_segments(fed)
    contestants: dict[str, Callable[[], object]] = {
        OURS: lambda: afresh(trainer, fed),
        BASE: lambda: trainer.train(base),
    }
    peaks = {name: _peak_gb(run) for name, run in contestants.items()}  # before the peers allocate tensors
    others, difference = _peers(trainer, fed) if peers else ({}, 0.0)
    contestants |= {GROUPED: others[GROUPED]} if peers else {}
    times = in_turns(contestants)
    over_base = in_pairs(contestants[OURS], contestants[BASE])
    if peers and loop:
        times[LOOP] = median_ms(others[LOOP], 3, 1)
    peaks |= {name: _peak_gb(others[name]) for name in times if name not in peaks}
    ranks = [segment.slot.rank for segment in fed if segment.slot is not None]
    tokens = sum(e.length for s in fed for e in s.examples)
    labels = sum(e.labels for s in fed for e in s.examples)
    floor = adapter_floor(shape, ranks, tokens)
    rows = []
    for name, (median, least, most) in times.items():
        row = {
            "what": f"forward + backward, {name}", "model": model, "batch": batch, "adapters": len(fed), "ms": median,
            "least_ms": least, "most_ms": most, "tokens": tokens, "labels": labels, "peak_gb": peaks[name],
        }  # fmt: skip
        if name == OURS:
            least_ms = floor.ms(copy_bytes_per_s())
            row |= {"adapter_floor_ms": least_ms, "adapter_floor_gb": floor.bytes / 1e9, "tax_floor": least_ms / times[BASE][0]}
            row["over_base"] = over_base
        if name == GROUPED:
            row["gradient_difference"] = difference
        rows.append(row)
    return rows


def fp8_cell(trainer: DeviceTrainer, plain: DeviceTrainer, fed: list[Segment], batch: int) -> list[dict[str, Any]]:
    """Ours on the base in fp8 (`trainer`, whose adapters `fed` names) beside the base alone, in fp8 and in bf16 (`plain`)."""
    base = base_segments(fed)
    contestants: dict[str, Callable[[], object]] = {
        OURS_FP8: lambda: afresh(trainer, fed),
        BASE: lambda: plain.train(base),
        BASE_FP8: lambda: trainer.train(base),
    }
    peaks = {name: _peak_gb(run) for name, run in contestants.items()}
    rows: list[dict[str, Any]] = [
        {"what": f"fp8: forward + backward, {name}", "model": "1B", "batch": batch, "adapters": len(fed), "ms": median,
         "least_ms": least, "most_ms": most, "tokens": sum(e.length for s in fed for e in s.examples), "peak_gb": peaks[name]}
        for name, (median, least, most) in in_turns(contestants).items()
    ]  # fmt: skip
    rows[0]["over_base"] = in_pairs(contestants[OURS_FP8], contestants[BASE])
    return rows


def solo_cell(trainer: DeviceTrainer, fed: list[Segment], batch: int) -> list[dict[str, Any]]:
    """The same adapters packed, and one after another in captured passes: what packing alone gains."""

    def one_by_one() -> None:
        trainer.arena.slots_with_gradient.clear()
        for segment in fed:
            trainer.train([segment])

    for _ in range(CAPTURE_AFTER):
        one_by_one()
    times = in_turns({OURS: lambda: afresh(trainer, fed), SOLO: one_by_one})
    return [
        {"what": f"packing: {name}", "batch": batch, "adapters": len(fed), "ms": median, "least_ms": least, "most_ms": most,
         "graphs": len(trainer.captured)}
        for name, (median, least, most) in times.items()
    ]  # fmt: skip


def mixed_rank_cell(trainer: DeviceTrainer, reader: Rows, batch: int, adapters: int) -> list[dict[str, Any]]:
    """One adapter of rank 256 beside others of rank 16; the same rows where all have rank 16; and the others alone.
    `over_uniform`: mixed over uniform, pair by pair of neighbouring blocks."""
    fed = feed(attach(trainer, adapters, (16,)), reader, batch)
    wide = attach(trainer, 1, (256,))[0].slot
    mixed = [Segment(wide, fed[0].examples, fed[0].loss_weight), *fed[1:]]
    contestants: dict[str, Callable[[], object]] = {
        UNIFORM: lambda: afresh(trainer, fed),
        MIXED: lambda: afresh(trainer, mixed),
        NEIGHBOURS: lambda: afresh(trainer, fed[1:]),
    }
    rows: list[dict[str, Any]] = [
        {"what": f"mixed ranks: {name}", "batch": batch, "adapters": adapters, "ms": median, "least_ms": least, "most_ms": most}
        for name, (median, least, most) in in_turns(contestants).items()
    ]
    rows[1]["over_uniform"] = in_pairs(contestants[MIXED], contestants[UNIFORM])
    return rows


def _peak_gb(run: Callable[[], object]) -> float:
    """Peak GPU memory of one call, including the base, the arena and other contestants' tensors."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    run()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() / 1e9


def _peers(trainer: DeviceTrainer, fed: list[Segment]) -> tuple[dict[str, Callable[[], object]], float]:
    """The peers' passes over this batch, and the difference between grouped_mm's and our gradient of one matrix."""
    flat = FlatBatch.of(fed)
    spans, _ = spans_of(fed, flat.ranges)
    table = tables(flat, (), ())
    shape = BatchShape.of(flat, table)
    base = unpack(shape, torch.from_numpy(fill(shape, flat, table)).cuda())
    labels = upload_labels(flat, (), (), shape, base.tokens.device)
    arena = trainer.arena
    fused = FusedPass(trainer.backbone, arena.layout, 4096)
    columns = fused.stack.dims.columns
    widths = {target.module: (target.in_features, target.out_features) for target in arena.layout.targets[:7]}
    afresh(trainer, fed)
    copy, ours = arena.layered(arena.compute_copy), arena.layered(arena.grad)
    grouped_lora = GroupedLora(copy, shape.tokens, spans, columns, widths)
    grouped = PeerPass(fused, grouped_lora)
    grouped.train(base, labels)
    span, (a, _) = spans[4], columns["up_proj"]
    want = ours[2, span.row : span.row + span.rank, a : a + widths["up_proj"][0]].clone()
    got = grouped_lora.grads[2, "up_proj"][0][4, : span.rank]
    difference = ((got.float() - want).norm() / want.norm()).item()

    def loop() -> None:
        PeerPass(fused, LoopLora(copy, torch.empty_like(ours), spans, columns)).train(base, labels)

    return {GROUPED: lambda: grouped.train(base, labels), LOOP: loop}, difference


def small_cells(backbone: Backbone, rows: Rows) -> Iterator[dict[str, Any]]:
    """The end of a sweep: few adapters at batch 1, one captured graph per bucket, and eager launches for comparison."""
    for adapters in (1, 4, 12):
        trainer = new_trainer(backbone, 64 * adapters)
        fed = feed(attach(trainer, adapters), rows, 1)
        eager = new_trainer(backbone, 64 * adapters)
        eager.graph_tokens = 0
        fed_eager = [Segment(own.slot, s.examples, s.loss_weight) for own, s in zip(attach(eager, adapters), fed, strict=True)]
        captured = median_ms(lambda trainer=trainer, fed=fed: afresh(trainer, fed), 21)  # type: ignore[misc]
        launched = median_ms(lambda trainer=eager, fed=fed_eager: afresh(trainer, fed), 9)  # type: ignore[misc]
        yield {
            "what": "forward + backward, few adapters", "adapters": adapters, "tokens": sum(s.examples[0].length for s in fed),
            "ms": captured[0], "least_ms": captured[1], "most_ms": captured[2], "eager_ms": launched[0],
            "peak_gb": torch.cuda.max_memory_allocated() / 1e9,
        }  # fmt: skip
        del trainer, eager
