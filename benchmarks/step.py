"""A whole training step on one GPU: ours, the frozen base alone, and other implementations, on the same GSM8K batches.

    python -m benchmarks.step [--commit HASH] [--skip peers,sequential,compiled,eight_b]

Ours is the executor's step with everything it does in service. 32 adapters of ranks 16, 32, 64 on Llama-3.2-1B's shape is also
the setting of ALTO's Table 2. The gate runs first; figures that miss their target are written all the same.
"""

import argparse
import gc
from collections.abc import Iterator
from typing import Any

import torch
import triton
from grouped_lora.base.fp8 import CAPABILITY

from benchmarks.consecutive_steps import consecutive_steps, count_compilations
from benchmarks.gate import run_gate
from benchmarks.llama_shapes import LLAMA_1B, LLAMA_8B, RANKS, Rows, attach, feed, in_fp8, random_backbone
from benchmarks.pass_timing import BASE, GROUPED, LOOP, OURS, OURS_FP8, cell, fp8_cell, new_trainer, small_cells
from benchmarks.result_file import median_ms, write_result
from benchmarks.sequential_peft import COMPILED, SEQUENTIAL, sequential_ms
from worker.model.backbone import Backbone
from worker.model.flat_batch import Segment
from worker.model.row_optimizer import RowUpdate

PEAK_FLOPS = 989e12  # H100 SXM, dense bf16, the vendor's datasheet
ROWS_32 = 1168 + 128  # arena rows for 32 adapters of 16, 32, 64 in turn, and room to attach more
STEP = "the executor's step, consecutive batches"
FP8 = "fp8: "  # how rows of a base in fp8 begin


def updates(segments: list[Segment], step: int) -> list[RowUpdate]:
    return [RowUpdate(segment.slot, 1e-4, 0.01, step, 1.0) for segment in segments if segment.slot is not None]


def optimizer_rows(backbone: Backbone) -> list[dict[str, Any]]:
    """Clip and AdamW of 32 adapters, fp32 and 8-bit moments."""
    found = []
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
        found.append(
            {"what": f"optimizer, {name} moments", "ms": ms[0], "least_ms": ms[1], "most_ms": ms[2], "moments_gb": gigabytes}
        )
        del trainer
    return found


def base_in_fp8(backbone: Backbone, reader: Rows) -> Iterator[dict[str, Any]]:
    """Steps and passes of 32 adapters on the same base held in fp8. Nothing on a GPU that does not multiply it."""
    if torch.cuda.get_device_capability() < CAPABILITY:
        return
    coded = in_fp8(backbone)
    for batch in (1, 4):
        trainer = new_trainer(coded, ROWS_32)
        yield consecutive_steps(trainer, reader, batch, 32, warmup=96) | {"what": FP8 + STEP}
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


def first(rows: list[dict[str, Any]], what: str, **match: Any) -> dict[str, Any]:
    return next(row for row in rows if row["what"] == what and all(row.get(key) == value for key, value in match.items()))


def figures(rows: list[dict[str, Any]]) -> dict[str, float]:
    """The figures by name, from the rows."""

    def ms(contestant: str, batch: int) -> float:
        found: float = first(rows, f"forward + backward, {contestant}", batch=batch, model="1B")["ms"]
        return found

    large = first(rows, f"forward + backward, {OURS}", batch=4, model="1B")
    steps = {batch: first(rows, STEP, batch=batch) for batch in (1, 2, 4)}
    few = {n: first(rows, "forward + backward, few adapters", adapters=n)["ms"] for n in (1, 4, 12)}
    flops = 4 * (LLAMA_1B.matrix_parameters * large["tokens"] + LLAMA_1B.hidden * LLAMA_1B.vocabulary * large["labels"])
    worst = [row["ms"] / first(rows, f"forward + backward, {OURS}", batch=row["batch"], model=row["model"])["ms"]
             for row in rows if row["what"] == f"forward + backward, {GROUPED}"]  # fmt: skip
    found = {
        **{f"step_ms_bs{batch}": steps[batch]["step_ms"] for batch in (1, 2, 4)},
        **{f"lora_tax_bs{batch}": ms(OURS, batch) / ms(BASE, batch) - 1 for batch in (1, 2, 4)},
        "base_ms_bs1": ms(BASE, 1), "base_ms_bs4": ms(BASE, 4),
        **{f"ms_{n}x1": few[n] for n in (1, 4, 12)},
        "label_fraction": steps[1]["label_fraction"], "tail_fraction": steps[1]["tail_fraction"],
        "mfu_bs4": flops / (large["ms"] / 1e3) / PEAK_FLOPS,
        "optimizer_ms_fp32": first(rows, "optimizer, fp32 moments")["ms"],
        "optimizer_ms_8bit": first(rows, "optimizer, 8-bit moments")["ms"],
        "tokens_per_s_bs1": steps[1]["tokens_per_s"],
    }  # fmt: skip
    if worst:
        found |= {"x_grouped_mm_min": min(worst), "x_loop_bs1": ms(LOOP, 1) / ms(OURS, 1)}
    for row in rows:
        if row["what"] == FP8 + STEP:
            found[f"step_ms_fp8_bs{row['batch']}"] = row["step_ms"]
        if row["what"] == f"{FP8}forward + backward, {OURS_FP8}":
            base = first(rows, f"{FP8}forward + backward, {BASE}", batch=row["batch"])["ms"]
            found[f"fp8_over_bf16_base_bs{row['batch']}"] = row["ms"] / base
    for name, what in (("", SEQUENTIAL), ("_compiled", COMPILED)):
        for row in rows:
            if row["what"] == what:
                found[f"x_sequential{name}_bs{row['batch']}"] = row["ms"] / steps[row["batch"]]["step_ms"]
    for row in rows:
        if row["what"].startswith("step on the 8B"):
            found["peak_gb_8b_32"] = row["peak_gb"]
        if row["what"] == f"forward + backward, {OURS}" and row["model"] == "8B":
            alone = first(rows, f"forward + backward, {BASE}", model="8B")["ms"]
            found |= {"ms_8b_16": row["ms"], "lora_tax_8b_16": row["ms"] / alone - 1}
    return {name: round(value, 4) for name, value in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--commit", help="the commit measured, where the tree is not a checkout")
    parser.add_argument("--skip", default="", help="comma-separated: peers, sequential, compiled, eight_b")
    options = parser.parse_args()
    skip = set(options.skip.split(","))
    triton.knobs.runtime.jit_post_compile_hook = count_compilations
    gate = run_gate()
    print("gate", gate["passed"], round(gate["worst_error"], 3), flush=True)
    if torch.cuda.get_device_capability() >= CAPABILITY:
        coded = run_gate(fp8=True)
        print("gate in fp8", coded["passed"], round(coded["worst_error"], 3), flush=True)
        gate |= {"fp8": coded, "passed": gate["passed"] and coded["passed"]}
    rows: list[dict[str, Any]] = []

    def note(*found: dict[str, Any]) -> None:
        for row in found:
            rows.append(row)
            print({key: round(value, 3) if isinstance(value, float) else value for key, value in row.items()}, flush=True)

    backbone, reader = random_backbone(LLAMA_1B), Rows(LLAMA_1B.vocabulary)
    for batch in (1, 2, 4):
        trainer = new_trainer(backbone, ROWS_32)
        note(consecutive_steps(trainer, reader, batch, 32))
        del trainer
        trainer = new_trainer(backbone, ROWS_32)
        note(
            *cell(
                trainer, LLAMA_1B, "1B", feed(attach(trainer, 32), reader, batch), batch, loop=True, peers="peers" not in skip
            )
        )
        del trainer
    for row in base_in_fp8(backbone, reader):
        note(row)
    note(*small_cells(backbone, reader))
    note(*optimizer_rows(backbone))
    del backbone
    if "eight_b" not in skip:
        note(*eight_billion())
    # Written now, since a slow host may not finish the rest in time.
    write_result("step", gate, figures(rows), rows, options.commit)
    for batch, compiled in ((1, False), (1, True), (2, False), (4, False)):
        if ("compiled" if compiled else "sequential") not in skip:
            note(sequential_ms([reader.take(batch) for _ in range(32)], compiled))
            write_result("step", gate, figures(rows), rows, options.commit)
    print(write_result("step", gate, figures(rows), rows, options.commit))
    print(figures(rows))


if __name__ == "__main__":
    main()
