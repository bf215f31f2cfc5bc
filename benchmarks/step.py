"""A whole training step on one GPU: ours, the frozen base alone, and what others do, on the same GSM8K batches.

    python -m benchmarks.step [--commit HASH] [--skip sequential,eight_b]

Ours is worker.model.device_trainer with everything it does in service: packing on the host, upload, tables, forward,
backward, clip,
AdamW. The gate runs first; figures that fall short of their aim are written all the same.
"""

import argparse
import gc
import time
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
import triton
from grouped_lora import Span
from grouped_lora.adamw import RowTable, adamw
from torch import Tensor

from benchmarks.gate import run_gate
from benchmarks.llama import LLAMA_1B, LLAMA_8B, RANKS, Rows, attach, feed, random_backbone
from benchmarks.peers import GroupedLora, LoopLora, PeerPass
from benchmarks.result import median_ms, write_result
from benchmarks.sequential import sequential_ms
from worker.model.backbone import Backbone
from worker.model.batch import FlatBatch, Segment
from worker.model.device_arena import DeviceArena
from worker.model.device_batch import BatchShape, bucket, fill, tables, unpack
from worker.model.device_trainer import DeviceTrainer, spans_of
from worker.model.fused_pass import FusedPass
from worker.model.layout import Layout
from worker.model.optimizer import RowUpdate

PEAK_FLOPS = 989e12  # H100 SXM, dense bf16, the vendor's datasheet
ROWS_32 = 1168 + 128  # arena rows for 32 adapters of 16, 32, 64 in turn, and room to attach
STEPS = {1: 64, 2: 24, 4: 16}

compiled: list[str] = []


def count_compilations(*_: Any, **found: Any) -> None:
    compiled.append(str(found.get("repr", "")))


def new_trainer(backbone: Backbone, rows: int) -> DeviceTrainer:
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    return DeviceTrainer(backbone, DeviceArena(backbone.targets, rows, "cuda", torch.bfloat16))


def updates(segments: Sequence[Segment], step: int) -> list[RowUpdate]:
    return [RowUpdate(segment.slot, 1e-4, 0.01, step, 1.0) for segment in segments if segment.slot is not None]


def consecutive_steps(trainer: DeviceTrainer, segments: list[Segment], rows: Rows, batch: int) -> dict[str, Any]:
    """Different batches one after another, with a detach and an attach midway; wall time a step, device idle time included."""
    for step in range(3):
        trainer.train(feed(segments, rows, batch))
        trainer.update(updates(segments, step + 1))
    count = STEPS[batch]
    batches = [feed(segments, rows, batch) for _ in range(count)]
    torch.cuda.synchronize()
    compiled.clear()
    tokens = labels = tail = 0
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(count + 1)]
    began = time.perf_counter()
    marks[0].record()
    for index, fed in enumerate(batches):
        if index == count // 2:
            gone = segments[3].slot
            assert gone is not None
            trainer.arena.detach(gone)
            segments[3] = Segment(trainer.arena.attach(gone.rank, 2.0 * gone.rank), [])
        fed = [Segment(own.slot, given.examples, given.weight) for own, given in zip(segments, fed, strict=True)]
        losses = trainer.train(fed)
        trainer.update(updates(segments, 10 + index))
        marks[index + 1].record()
        own_tokens = sum(len(e.tokens) - 1 for s in fed for e in s.examples)
        tokens, labels = tokens + own_tokens, labels + sum(loss.labels for loss in losses)
        tail += bucket(own_tokens, 32, 32) - own_tokens
    torch.cuda.synchronize()
    wall = (time.perf_counter() - began) * 1e3
    each = sorted(a.elapsed_time(b) for a, b in pairwise(marks))
    return {
        "what": "consecutive steps", "batch": batch, "adapters": len(segments), "steps": count, "step_ms": each[count // 2],
        "least_ms": each[0], "most_ms": each[-1], "mean_wall_ms": wall / count, "tokens_per_step": tokens / count,
        "label_fraction": labels / tokens, "tail_fraction": tail / tokens, "compilations": len(compiled),
        "tokens_per_s": tokens / wall * 1e3, "peak_gb": torch.cuda.max_memory_allocated() / 1e9,
    }  # fmt: skip


def afresh(trainer: DeviceTrainer, fed: list[Segment]) -> None:
    """One pass as the first of a step: gradients are written, not added to the last ones."""
    trainer.arena.written.clear()
    trainer.train(fed)


def base_segment(segments: Sequence[Segment]) -> list[Segment]:
    """The same rows without adapters."""
    return [Segment(None, segment.examples, segment.weight) for segment in segments]


def against_base(trainer: DeviceTrainer, fed: list[Segment], batch: int) -> list[dict[str, Any]]:
    """Forward and backward of the same batch, ours and the base alone, measured in turns."""
    base = base_segment(fed)
    ours_ms = median_ms(lambda: afresh(trainer, fed), 15)
    base_ms = median_ms(lambda: trainer.train(base), 15)
    again = median_ms(lambda: afresh(trainer, fed), 15)
    best = min(ours_ms, again)
    return [
        {"what": "forward + backward, ours", "batch": batch, "ms": best[0], "least_ms": best[1], "most_ms": best[2]},
        {
            "what": "forward + backward, base alone",
            "batch": batch,
            "ms": base_ms[0],
            "least_ms": base_ms[1],
            "most_ms": base_ms[2],
        },
    ]


def peers(trainer: DeviceTrainer, fed: list[Segment], batch: int) -> list[dict[str, Any]]:
    """The PyTorch loop and grouped_mm over the same base passes; their gradients are compared with ours."""
    flat = FlatBatch.of(fed)
    spans, _ = spans_of([segment.slot for segment in fed], flat.ranges)
    table = tables(flat, (), ())
    shape = BatchShape.of(flat, table)
    base, labels = unpack(shape, torch.from_numpy(fill(shape, flat, table)).cuda())
    arena = trainer.arena
    fused = FusedPass(trainer.backbone, arena.layout, 4096)
    columns = fused.stack.shape.columns
    widths = {target.kind: (target.in_features, target.out_features) for target in arena.layout.targets[:7]}
    copy = arena.layered(arena.copy)
    afresh(trainer, fed)
    ours = arena.layered(arena.grad)
    rows = []
    loop = PeerPass(fused, LoopLora(copy, torch.empty_like(ours), spans, columns))
    grouped_lora = GroupedLora(copy, shape.tokens, spans, columns, widths)
    grouped = PeerPass(fused, grouped_lora)
    grouped.train(base, labels)
    span, (a, _) = spans[4], columns["up_proj"]
    want = ours[2, span.row : span.row + span.rank, a : a + widths["up_proj"][0]]
    got = grouped_lora.grads[2, "up_proj"][0][4, : span.rank]
    error = ((got.float() - want).norm() / want.norm()).item()
    for name, peer, repeats in (("torch grouped_mm, padded", grouped, 8), ("PyTorch loop", loop, 3)):
        ms = median_ms(lambda peer=peer: peer.train(base, labels), repeats, 1)  # type: ignore[misc]
        rows.append(
            {"what": f"forward + backward, {name}", "batch": batch, "ms": ms[0], "least_ms": ms[1], "most_ms": ms[2],
             "gradient_difference": error, "peak_gb": torch.cuda.max_memory_allocated() / 1e9}
        )  # fmt: skip
    return rows


def small_steps(backbone: Backbone, rows: Rows) -> list[dict[str, Any]]:
    """A sweep's tail: few adapters at batch 1, one captured graph a bucket."""
    found = []
    for adapters in (1, 4, 12):
        trainer = new_trainer(backbone, 64 * adapters)
        fed = feed(attach(trainer, adapters), rows, 1)
        ms = median_ms(lambda trainer=trainer, fed=fed: afresh(trainer, fed), 20)  # type: ignore[misc]
        tokens = sum(len(e.tokens) - 1 for s in fed for e in s.examples)
        peak = torch.cuda.max_memory_allocated() / 1e9
        found.append(
            {"what": "forward + backward, few adapters", "adapters": adapters, "tokens": tokens, "ms": ms[0], "least_ms": ms[1],
             "most_ms": ms[2], "peak_gb": peak}
        )  # fmt: skip
        del trainer
    return found


def row_table(ranks: Sequence[int]) -> RowTable:
    """Adapters of these ranks one after another from arena row 0."""
    owner = np.repeat(np.arange(len(ranks)), ranks).astype(np.int32)
    firsts = np.cumsum([0, *ranks]).astype(np.int32)
    rates = torch.tensor([[1e-4, 0.01, 0.1, 0.001, 1.0]] * len(ranks), device="cuda")
    rows = torch.arange(int(firsts[-1]), dtype=torch.int32, device="cuda")
    return RowTable(rows, torch.from_numpy(owner).cuda(), torch.from_numpy(firsts).cuda(), rates)


def optimizer_rows(backbone: Backbone) -> list[dict[str, Any]]:
    """Clip and AdamW of 32 adapters, fp32 and 8-bit moments."""
    ranks = [RANKS[index % 3] for index in range(32)]
    trainer = new_trainer(backbone, sum(ranks))
    arena = trainer.arena
    arena.grad.normal_(std=1e-3)
    table = row_table(ranks)
    master, grad, m, v, copy = (
        arena.layered(b) for b in (arena.master, arena.grad, arena.exp_avg, arena.exp_avg_sq, arena.copy)
    )
    found = []
    codes = eight_bit(sum(ranks), master.shape[0], master.shape[2])
    for name, moments in (("fp32", (m, v)), ("8-bit", codes)):
        ms = median_ms(lambda moments=moments: adamw(master, grad, moments, copy, table))  # type: ignore[misc]
        size = sum(part.numel() * part.element_size() for part in moments) / 1e9
        found.append(
            {"what": f"optimizer, {name} moments", "ms": ms[0], "least_ms": ms[1], "most_ms": ms[2], "moments_gb": size}
        )
    return found


def eight_billion() -> dict[str, Any]:
    """One step of 32 adapters of mean rank 37 at batch 1 on the 8B shape, with checkpointing and 8-bit moments."""
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    backbone = random_backbone(LLAMA_8B)
    layout, layers = Layout(backbone.targets), len(backbone.layers)
    ranks, rows = [RANKS[index % 3] for index in range(32)], Rows(LLAMA_8B.vocabulary)
    examples = [rows.take(1) for _ in ranks]
    flat = FlatBatch.of([Segment(None, own, 1 / sum(e.labels for e in own)) for own in examples])
    firsts = np.cumsum([0, *ranks])
    spans = tuple(Span(a, b, int(row), rank, 2.0) for (a, b), row, rank in zip(flat.ranges, firsts, ranks, strict=False))
    work = tables(flat, spans, (False,) * 32)
    shape = BatchShape.of(flat, work)
    batch, labels = unpack(shape, torch.from_numpy(fill(shape, flat, work)).cuda())
    fused, table = FusedPass(backbone, layout, 4096), row_table(ranks)
    master = torch.empty(sum(ranks), layers, layout.width // layers, device="cuda").normal_(std=0.02).transpose(0, 1)
    copy, grad = master.bfloat16(), torch.zeros_like(master)
    moments = eight_bit(sum(ranks), layers, layout.width // layers)

    def step() -> None:
        fused.train(batch, labels, copy, grad, checkpoint=True)
        adamw(master, grad, moments, copy, table)

    ms = median_ms(step, 3, 1)
    return {
        "what": "step on the 8B shape, 32 adapters, 8-bit moments, checkpointing", "tokens": flat.size, "ms": ms[0],
        "least_ms": ms[1], "most_ms": ms[2], "peak_gb": torch.cuda.max_memory_allocated() / 1e9,
        "mean_rank": sum(ranks) / 32,
    }  # fmt: skip


def eight_bit(rows: int, layers: int, columns: int) -> tuple[Tensor, ...]:
    """Codes of both moments (row-major, as the arena) and their block scales, all zero moments."""
    codes = [torch.zeros(rows, layers, columns, dtype=torch.uint8, device="cuda").transpose(0, 1) for _ in range(2)]
    scales = [torch.zeros(layers, rows, -(-columns // 256), device="cuda") for _ in range(2)]
    return codes[0], codes[1], scales[0], scales[1]


def first(rows: list[dict[str, Any]], what: str, **match: Any) -> dict[str, Any]:
    return next(row for row in rows if row["what"] == what and all(row.get(key) == value for key, value in match.items()))


def figures(rows: list[dict[str, Any]]) -> dict[str, float]:
    """The figures by name, from the rows."""
    ours = {batch: first(rows, "forward + backward, ours", batch=batch)["ms"] for batch in (1, 2, 4)}
    base = {batch: first(rows, "forward + backward, base alone", batch=batch)["ms"] for batch in (1, 2, 4)}
    grouped = {batch: first(rows, "forward + backward, torch grouped_mm, padded", batch=batch)["ms"] for batch in (1, 2, 4)}
    steps = {batch: first(rows, "consecutive steps", batch=batch) for batch in (1, 2, 4)}
    few = {n: first(rows, "forward + backward, few adapters", adapters=n)["ms"] for n in (1, 4, 12)}
    tokens, labels = steps[4]["tokens_per_step"], steps[4]["tokens_per_step"] * steps[4]["label_fraction"]
    flops = 4 * (LLAMA_1B.matrix_parameters * tokens + LLAMA_1B.hidden * LLAMA_1B.vocabulary * labels)
    found = {
        **{f"step_ms_bs{batch}": steps[batch]["step_ms"] for batch in (1, 2, 4)},
        **{f"lora_tax_bs{batch}": ours[batch] / base[batch] - 1 for batch in (1, 2, 4)},
        "base_ms_bs1": base[1], "base_ms_bs4": base[4],
        "x_loop_bs1": first(rows, "forward + backward, PyTorch loop", batch=1)["ms"] / ours[1],
        **{f"ms_{n}x1": few[n] for n in (1, 4, 12)},
        "label_fraction": steps[1]["label_fraction"], "tail_fraction": steps[1]["tail_fraction"],
        "x_grouped_mm_min": min(grouped[batch] / ours[batch] for batch in (1, 2, 4)),
        "mfu_bs4": flops / (ours[4] / 1e3) / PEAK_FLOPS,
        "optimizer_ms_fp32": first(rows, "optimizer, fp32 moments")["ms"],
        "optimizer_ms_8bit": first(rows, "optimizer, 8-bit moments")["ms"],
        "tokens_per_s_bs1": steps[1]["tokens_per_s"],
    }  # fmt: skip
    for name, what in (
        ("x_sequential_bs1", "sequential PEFT"),
        ("x_sequential_compiled_bs1", "sequential PEFT, torch.compile"),
    ):
        for row in rows:
            if row["what"] == what:
                found[name] = row["ms"] / steps[1]["step_ms"]
    for row in rows:
        if row["what"].startswith("step on the 8B"):
            found["peak_gb_8b_32"] = row["peak_gb"]
    return {name: round(value, 4) for name, value in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--commit", help="the commit measured, where the tree is not a checkout")
    parser.add_argument("--skip", default="", help="comma-separated: sequential, compiled, eight_b, peers")
    options = parser.parse_args()
    skip = set(options.skip.split(","))
    triton.knobs.runtime.jit_post_compile_hook = count_compilations
    gate = run_gate()
    print("gate", gate["passed"], round(gate["worst_error"], 3), flush=True)
    rows: list[dict[str, Any]] = []

    def note(*found: dict[str, Any]) -> None:
        for row in found:
            rows.append(row)
            print({key: round(value, 3) if isinstance(value, float) else value for key, value in row.items()}, flush=True)

    backbone, reader = random_backbone(LLAMA_1B), Rows(LLAMA_1B.vocabulary)
    for batch in (1, 2, 4):
        trainer = new_trainer(backbone, ROWS_32)
        segments = attach(trainer, 32)
        note(consecutive_steps(trainer, segments, reader, batch))
        fed = feed(segments, reader, batch)
        note(*against_base(trainer, fed, batch))
        if "peers" not in skip:
            note(*peers(trainer, fed, batch))
        del trainer
    note(*small_steps(backbone, reader))
    note(*optimizer_rows(backbone))
    del backbone
    if "eight_b" not in skip:
        note(eight_billion())
    if "sequential" not in skip:
        for row in sequential_ms(reader.take(32), "compiled" not in skip):
            note(row)
    print(write_result("step", gate, figures(rows), rows, options.commit))
    print(figures(rows))


if __name__ == "__main__":
    main()
