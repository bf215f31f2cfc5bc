"""Compiles every kernel of a step ahead of time, without the chip: does its shared memory fit, and what does it spill.

    python -m benchmarks.compile_ahead [--chip 80] [--limit-kb 163] [--processes N]

Llama-3.2-1B's shape in bf16, and what Gemma 2 2B's has of its own, with launch_configs.py's table for that chip, in all rank
classes (none, 64, 128, 256), with dropout, for a Hopper in fp32, too (which tests run), and on a base in fp8. Launches nothing.
Exits with 1 if a kernel does not fit: a program may use 163 KB on an A100 (80), 99 KB on other Ampere and Ada chips (86, 89),
227 KB on a Hopper.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import triton
from grouped_lora.adapter_spans import Span
from grouped_lora.base.fp8_quantise import quantise_on_device, transposed
from grouped_lora.block.cross_entropy import cross_entropy
from grouped_lora.block.packed_attention import attention
from grouped_lora.block.packed_attention_backward import AdapterInputGradient, attention_backward
from grouped_lora.block.paged_attention import paged_attention
from grouped_lora.block.post_norm import post_norm
from grouped_lora.block.qkv_rotary import rotary, rotary_backward
from grouped_lora.block.residual_norm import norm_backward, residual_norm
from grouped_lora.block.sequence_table import SequenceTable, sequence_blocks
from grouped_lora.block.swiglu import SwigluColumns, swiglu, swiglu_backward
from grouped_lora.block.whole_norm_rotary import whole_norm_rotary, whole_norm_rotary_backward
from grouped_lora.compile_ahead import Launch, noted, pretend
from grouped_lora.dropout import token_keys
from grouped_lora.gradient import COLUMNS, ROWS, Gradient
from grouped_lora.products.expand import expand
from grouped_lora.products.shrink import shrink
from grouped_lora.products.weight_gradients import weight_gradient
from grouped_lora.work_table import work_table

FP8 = "fp8"  # from compute capability 8.9 on
CLASSES = {
    "no adapter": (0, False, torch.bfloat16),
    "rank 64": (64, False, torch.bfloat16),
    "rank 64, dropout": (64, True, torch.bfloat16),
    "rank 128": (128, False, torch.bfloat16),
    "rank 256": (256, False, torch.bfloat16),
    "rank 64, fp32": (64, False, torch.float32),
    "rank 256, fp32": (256, False, torch.float32),
    FP8: (0, False, torch.bfloat16),
}
LARGE_HEADS = ("attention, capped, heads of 256", "attention backward, capped, heads of 256")
T, D, F, KV = 192, 2048, 8192, 512


def kernels(rank: int, drop: bool, dtype: torch.dtype) -> dict[str, Callable[[], object]]:
    """One call of each kernel wrapper, on tensors whose contents do not matter."""
    spans = [Span(0, 64, 0, 16, 1.0, 0.1 if drop else 0.0), Span(64, T, 16, rank, 1.0)] if rank else []
    table = work_table(spans, T, "cpu", keys=token_keys(0, 0, [0], [T]) if drop else None)
    rows = rank + 16

    def half(*size: int) -> torch.Tensor:
        return torch.empty(*size, dtype=dtype)

    grad = Gradient(torch.empty(rows, 5 * F), torch.empty(rows // ROWS, 5 * F // COLUMNS))
    copy, x, rstd = half(rows, 5 * F), half(T, D), torch.empty(T)
    gate_up, act, qkv, cos = half(T, 2 * F), half(T, F), half(T, D + 2 * KV), torch.empty(99, 32)
    s = {mats: half(T, mats, rank) if rank else None for mats in (1, 2, 3)}
    places, trio, at = torch.zeros(T, dtype=torch.int32), (0, D, 2 * D), SwigluColumns(0, F, 2 * F)
    sequences, heads, lse = SequenceTable(torch.from_numpy(sequence_blocks([0, T]))), (32, 8), torch.empty(32, T)
    found: dict[str, Callable[[], object]] = {
        "norm": lambda: residual_norm(x, x, s[1], copy, 0, half(D), 1e-5, table),
        "norm backward": lambda: norm_backward(x, s[3], s[3], copy, trio, x, rstd, half(D), x, table),
        "rotary": lambda: rotary(qkv, s[3], copy, (0, D, D + KV), cos, cos, places, heads, table),
        "rotary, head norms": lambda: rotary(
            qkv, s[3], copy, (0, D, D + KV), half(99, 64), half(99, 64), places, (16, 4), table, (half(128), half(128), 1e-6)
        ),
        "rotary, norms over all heads": lambda: whole_norm_rotary(
            qkv, (half(D), half(KV)), 1e-6, half(99, 64), half(99, 64), places, (16, 4)
        ),
        "rotary, norms over all heads, backward": lambda: whole_norm_rotary_backward(
            qkv, half(T, D + KV), (half(D), half(KV)), 1e-6, half(99, 64), half(99, 64), places, (16, 4)
        ),
        "norm of a normed output": lambda: residual_norm(
            x, x, None, copy, 0, torch.empty(D), 1e-6, table, (rstd, torch.empty(D))
        ),
        "norm behind a product": lambda: post_norm(x, s[1], copy, 0, 1e-6, table),
        "geglu": lambda: swiglu(gate_up, s[2], copy, replace(at, activation="gelu_pytorch_tanh"), table),
        "geglu backward": lambda: swiglu_backward(
            gate_up, act, s[2], s[1], copy, grad, replace(at, activation="gelu_pytorch_tanh"), table
        ),
        "swiglu": lambda: swiglu(gate_up, s[2], copy, at, table),
        "swiglu backward": lambda: swiglu_backward(gate_up, act, s[2], s[1], copy, grad, at, table),
    }
    if not rank:
        return found | {
            "attention": lambda: attention(qkv, sequences, heads, 0.125),
            "attention, capped, heads of 256": lambda: attention(half(T, 16 * 256), sequences, (8, 4), 0.0625, 96, 50.0),
            "attention backward, capped, heads of 256": lambda: attention_backward(
                half(T, 8 * 256), half(T, 16 * 256), half(T, 8 * 256), lse, sequences, (8, 4), 0.0625, 96, cap=50.0
            ),
            "rotary, heads of 256": lambda: rotary(
                half(T, 16 * 256), None, copy, (0, 0, 0), half(99, 128), half(99, 128), places, (8, 4), table
            ),
            "paged attention": lambda: paged_attention(
                qkv, half(9, 8, 64, 64), half(9, 8, 64, 64), places.view(-1, 1), places, heads, 0.125, 96
            ),
            "paged attention, capped": lambda: paged_attention(
                half(T, 12 * 256),
                half(9, 4, 64, 256),
                half(9, 4, 64, 256),
                places.view(-1, 1),
                places,
                (8, 4),
                0.0625,
                96,
                50.0,
            ),
            "attention backward": lambda: attention_backward(x, qkv, x, lse, sequences, heads, 0.125),
            "rotary backward": lambda: rotary_backward(qkv, cos, cos, places, heads),
            "cross entropy": lambda: cross_entropy(half(64, 128256), places, rstd),
            "cross entropy, capped": lambda: cross_entropy(half(64, 128256), places, rstd, cap=30.0),
        }
    one, three = s[1], s[3]
    assert one is not None
    assert three is not None
    return found | {
        "shrink of one": lambda: shrink(gate_up, copy, table, (0, F), (F, F), (0, F)),
        "shrink of two": lambda: shrink(x, copy, table, trio[:2], (D,) * 2, dropout_matrix=0),
        "shrink of three": lambda: shrink(x, copy, table, trio, (D,) * 3, dropout_matrix=0),
        "outer of one": lambda: weight_gradient(one, x, grad, table, (0,), (D,), dropout_matrix=0),
        "outer of three": lambda: weight_gradient(three, x, grad, table, trio, (D,) * 3, dropout_matrix=0),
        "expand": lambda: expand(one, copy, 0, D, table),
        "attention backward": lambda: attention_backward(
            x, qkv, x, lse, sequences, heads, 0.125, incoming=AdapterInputGradient(one, copy, 0, table, 0)
        ),
        "attention backward, capped, heads of 256": lambda: attention_backward(
            half(T, 8 * 256),
            half(T, 16 * 256),
            half(T, 8 * 256),
            lse,
            sequences,
            (8, 4),
            0.0625,
            96,
            AdapterInputGradient(one, copy, 0, table, 0),
            50.0,
        ),
        "rotary, heads of 256": lambda: rotary(
            half(T, 16 * 256), three, copy, (0, D, D + KV), half(99, 128), half(99, 128), places, (8, 4), table
        ),
    }


def coded_kernels() -> dict[str, Callable[[], object]]:
    """One call of each kernel for a base in fp8."""
    return {
        "quantise": lambda: quantise_on_device(torch.empty(T, 2 * F, dtype=torch.bfloat16), torch.empty(2 * F)),
        "transpose": lambda: transposed(torch.empty(2 * F, D, dtype=torch.float8_e4m3fn)),
    }


def calls(name: str) -> dict[str, Callable[[], object]]:
    """In fp32 no attention with heads of 256: its tiles fit on no chip, and bases are in bf16 there."""
    if name == FP8:
        return coded_kernels()
    found, dtype = kernels(*CLASSES[name]), CLASSES[name][2]
    return {call: run for call, run in found.items() if not (dtype == torch.float32 and call in LARGE_HEADS)}


def report(chip: int, launch: Launch) -> dict[str, Any]:
    """The compiler's report on one launch: {kernel, shared_kb, registers, spilled bytes}."""
    kernel = launch.compile()
    with tempfile.NamedTemporaryFile("w", suffix=".ptx") as ptx:
        ptx.write(kernel.asm["ptx"])
        ptx.flush()
        arch = f"sm_{chip}a" if chip >= 90 else f"sm_{chip}"
        command = [triton.knobs.nvidia.ptxas.path, "-v", f"-arch={arch}", ptx.name, "-o", os.devnull]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    registers, spilled = (
        int(found[1]) for found in (re.search(p, said) for p in (r"Used (\d+)", r"(\d+) bytes spill st")) if found
    )
    return {
        "kernel": launch.function.__name__, "shared_kb": kernel.metadata.shared / 1024, "registers": registers,
        "spilled": spilled,
    }  # fmt: skip


def one(chip: int, case: tuple[str, str]) -> list[dict[str, Any]]:
    """Compile every kernel that one call launches in this process, instead of launching it."""
    pretend((chip // 10, chip % 10))
    with noted() as launches:
        calls(case[0])[case[1]]()
    return [{"class": case[0], "call": case[1], **report(chip, launch)} for launch in launches]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--chip", type=int, default=80, help="compute capability: 80, 86, 89, 90")
    parser.add_argument("--limit-kb", type=float, help="shared memory a program may have")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    options = parser.parse_args()
    limit = options.limit_kb or {80: 163, 87: 163, 90: 227}.get(options.chip, 99)
    least = {FP8: 89, **dict.fromkeys((name for name, (*_, dtype) in CLASSES.items() if dtype == torch.float32), 90)}
    cases = [(name, call) for name in CLASSES if options.chip >= least.get(name, 0) for call in calls(name)]
    worst = 0.0
    with ProcessPoolExecutor(options.processes) as pool:
        for rows in pool.map(partial(one, options.chip), cases):
            for row in rows:
                worst = max(worst, row["shared_kb"])
                print(
                    "{class:18} {call:28} {kernel:20} {shared_kb:6.1f} KB {registers:4} registers {spilled:5} spilled".format(
                        **row
                    )
                )
    print(f"sm_{options.chip}: at most {worst:.1f} KB of {limit} KB shared memory")
    return int(worst > limit)


if __name__ == "__main__":
    sys.exit(main())
