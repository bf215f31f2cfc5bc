"""A whole training step on one GPU: ours, the frozen base alone, and other implementations, on the same GSM8K batches.

    python -m benchmarks.step [--commit HASH] [--skip peers,sequential,compiled,eight_b]

Parts by name: cells (whole steps, and passes beside the base), peers, fp8, mixed (ranks), solo, few (adapters), optimizer,
eight_b, sequential, compiled. The result file has those that ran.

Ours is the executor's step with everything it does in service. 32 adapters of ranks 16, 32, 64 on Llama-3.2-1B's shape is also
the setting of ALTO's Table 2. The gate runs first; figures that miss their target are written all the same.
"""

import argparse
import gc
import time
from collections.abc import Iterable, Iterator
from typing import Any

import torch
import triton
from grouped_lora.base.fp8 import CAPABILITY

from benchmarks.consecutive_steps import consecutive_steps, count_compilations
from benchmarks.gate import run_gate
from benchmarks.llama_shapes import LLAMA_1B, LLAMA_8B, RANKS, Rows, attach, feed, in_fp8, random_backbone
from benchmarks.pass_timing import cell, fp8_cell, mixed_rank_cell, new_trainer, small_cells, solo_cell
from benchmarks.result_file import median_ms, write_result
from benchmarks.roofline import copy_bytes_per_s
from benchmarks.sequential_peft import sequential_ms
from benchmarks.step_figures import COPY, FP8, STEP, figures
from worker.model.backbone import Backbone
from worker.model.flat_batch import Segment
from worker.model.row_optimizer import RowUpdate

PARTS = ("cells", "peers", "fp8", "mixed", "solo", "few", "optimizer", "eight_b", "sequential", "compiled")
ROWS_32 = 1168 + 128  # arena rows for 32 adapters of 16, 32, 64 in turn, and room to attach more


def updates(segments: list[Segment], step: int) -> list[RowUpdate]:
    return [RowUpdate(segment.slot, 1e-4, 0.01, step, 1.0) for segment in segments if segment.slot is not None]


def optimizer_rows(backbone: Backbone) -> Iterator[dict[str, Any]]:
    """Clip and AdamW of 32 adapters, fp32 and 8-bit moments, and the bandwidth of a copy. The sums of squares count in the pass
    that writes them."""
    yield {"what": COPY, "bytes_per_s": copy_bytes_per_s()}
    for name, coded in (("fp32", False), ("8-bit", True)):
        trainer = new_trainer(backbone, ROWS_32, coded)
        segments = attach(trainer, 32)
        trainer.arena.grad.normal_(std=1e-3)

        def once(trainer: Any = trainer, segments: list[Segment] = segments) -> None:
            trainer.arena.slots_with_gradient.update(segment.slot for segment in segments)
            trainer.update(updates(segments, 3))

        ms = median_ms(once)
        moments = trainer.arena.moments
        gigabytes = moments.bytes_per_row * trainer.arena.rows_used / 1e9
        yield {
            "what": f"optimizer, {name} moments", "ms": ms[0], "least_ms": ms[1], "most_ms": ms[2], "moments_gb": gigabytes
        }  # fmt: skip
        del trainer, once


def cells(backbone: Backbone, reader: Rows, peers: bool) -> Iterator[dict[str, Any]]:
    """Whole steps, and passes beside the base alone and the peers, of 32 adapters."""
    for batch in (1, 2, 4):
        trainer = new_trainer(backbone, ROWS_32)
        yield consecutive_steps(trainer, reader, batch, 32)
        del trainer
        trainer = new_trainer(backbone, ROWS_32)
        yield from cell(trainer, LLAMA_1B, "1B", feed(attach(trainer, 32), reader, batch), batch, loop=True, peers=peers)
        del trainer


def mixed_ranks(backbone: Backbone, reader: Rows) -> Iterator[dict[str, Any]]:
    """One adapter of rank 256 beside 31, and beside 3, of rank 16."""
    for batch, adapters in ((1, 32), (4, 32), (1, 4)):
        trainer = new_trainer(backbone, 16 * adapters + 256)
        yield from mixed_rank_cell(trainer, reader, batch, adapters)
        del trainer


def solo(backbone: Backbone, reader: Rows) -> Iterator[dict[str, Any]]:
    """32 adapters packed, and one after another in captured passes."""
    for batch in (1, 4):
        trainer = new_trainer(backbone, ROWS_32)
        yield from solo_cell(trainer, feed(attach(trainer, 32), reader, batch), batch)
        del trainer


def base_in_fp8(backbone: Backbone, reader: Rows) -> Iterator[dict[str, Any]]:
    """Steps and passes of 32 adapters on the same base held in fp8. Nothing on a GPU that does not multiply it."""
    if torch.cuda.get_device_capability() < CAPABILITY:
        return
    coded = in_fp8(backbone)
    for batch in (1, 4):
        trainer = new_trainer(coded, ROWS_32)
        yield consecutive_steps(trainer, reader, batch, 32) | {"what": FP8 + STEP}
        del trainer
        trainer = new_trainer(coded, ROWS_32)
        yield from fp8_cell(trainer, new_trainer(backbone, 64), feed(attach(trainer, 32), reader, batch), batch)
        del trainer


def eight_billion() -> list[dict[str, Any]]:
    """The 8B shape: 16 adapters against the peers, and a whole step of 32 with checkpointing and 8-bit moments."""
    gc.collect()
    torch.cuda.empty_cache()
    backbone, rows = random_backbone(LLAMA_8B), Rows(LLAMA_8B.vocabulary)
    trainer = new_trainer(backbone, 640, eight_bit=True)
    trainer.graph_tokens = 0  # no graphs, like the peers; a captured pass keeps its activations, and leaves the peers no room
    found = cell(trainer, LLAMA_8B, "8B", feed(attach(trainer, 16), rows, 1), 1, loop=False)
    del trainer
    trainer = new_trainer(backbone, 1168, eight_bit=True)
    segments = attach(trainer, 32)
    fed = feed(segments, rows, 1)

    def once() -> None:
        trainer.train(fed, recompute=True)
        trainer.update(updates(segments, 3))

    ms = median_ms(once, 3, 1)
    mean = sum(RANKS[index % 3] for index in range(32)) / 32
    found.append(
        {"what": "step on the 8B shape, 32 adapters, 8-bit moments, checkpointing", "ms": ms[0], "least_ms": ms[1],
         "most_ms": ms[2], "tokens": sum(s.examples[0].length for s in fed), "mean_rank": mean,
         "peak_gb": torch.cuda.max_memory_allocated() / 1e9}
    )  # fmt: skip
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--commit", help="the commit measured, where the tree is not a checkout")
    parser.add_argument("--skip", default="", help=f"comma-separated: {', '.join(PARTS)}")
    options = parser.parse_args()
    skip = {name for name in options.skip.split(",") if name}
    if unknown := skip - set(PARTS):
        parser.error(f"--skip {', '.join(sorted(unknown))}: no such part; there are {', '.join(PARTS)}")
    triton.knobs.runtime.jit_post_compile_hook = count_compilations
    gate = run_gate()
    print("gate", gate["passed"], round(gate["worst_error"], 3), flush=True)
    if torch.cuda.get_device_capability() >= CAPABILITY:
        coded = run_gate(fp8=True)
        print("gate in fp8", coded["passed"], round(coded["worst_error"], 3), flush=True)
        gate |= {"fp8": coded, "passed": gate["passed"] and coded["passed"]}
    rows: list[dict[str, Any]] = []
    began = time.monotonic()

    def note(found: Iterable[dict[str, Any]]) -> None:
        for row in found:
            rows.append(row)
            shown = {key: round(value, 3) if isinstance(value, float) else value for key, value in row.items()}
            print(f"{time.monotonic() - began:.0f} s", shown, flush=True)
        # Written after each part, since a slow host may not finish the rest in time.
        write_result("step", gate, figures(rows), rows, options.commit)

    backbone, reader = random_backbone(LLAMA_1B), Rows(LLAMA_1B.vocabulary)
    parts: dict[str, Iterable[dict[str, Any]]] = {
        "optimizer": optimizer_rows(backbone),
        "cells": cells(backbone, reader, "peers" not in skip),
        "fp8": base_in_fp8(backbone, reader),
        "mixed": mixed_ranks(backbone, reader),
        "solo": solo(backbone, reader),
        "few": small_cells(backbone, reader),
    }
    for name, part in parts.items():
        if name not in skip:
            note(part)
    del backbone, parts, part
    if "eight_b" not in skip:
        note(eight_billion())
    for batch, compiled in ((1, False), (1, True), (2, False), (4, False)):
        if "cells" not in skip and ("compiled" if compiled else "sequential") not in skip:
            note([sequential_ms([reader.take(batch) for _ in range(32)], compiled)])
    print(write_result("step", gate, figures(rows), rows, options.commit))
    print(figures(rows))


if __name__ == "__main__":
    main()
