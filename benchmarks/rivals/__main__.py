"""One decoder layer of Llama-3.2-1B's shape with many adapters, forward and backward: ours, the frozen base, and three rivals.

    python -m benchmarks.rivals [--lorafusion DIR] [--mlora DIR] [--unsloth DIR] [--commit HASH]

bf16, random weights, LoRA on all seven linear maps. A rival's linear maps and LoRA are its own, loaded from its checkout DIR
(module_loading.py says what that must hold); norm, rotary, attention and residual sums are ours for all (a rival's q, k and v
are joined for it). Cells: 32 adapters of mixed ranks on GSM8K's rows, and four of rank 16, which suits LoRAFusion best. The
gate runs first, then each contestant's output, dX, dA and dB are compared with a layer in float32. Who does not agree is not
timed, and then the command fails and writes nothing. "eager": launched from Python; "graphed": one captured CUDA graph, which
is kind to those that launch much.
Without a GPU a toy shape runs under Triton's interpreter, agreement alone, and nothing is written.
"""

import argparse
import json
import multiprocessing
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import torch

from benchmarks.gate import run_gate
from benchmarks.llama_shapes import LLAMA_1B, LlamaShape
from benchmarks.result_file import write_result
from benchmarks.rivals import module_loading
from benchmarks.rivals.layer_cell import SPECS, TINY_SPECS, LayerCell, two_layers
from benchmarks.rivals.layer_timing import (
    AHEAD,
    BASE,
    EAGER,
    GRAPHED,
    LORAFUSION,
    MLORA,
    OURS,
    TOLERANCE,
    UNSLOTH,
    CellResult,
    compile_ahead,
    measure,
)

TOY = LlamaShape(2, 64, 96, 4, 2, 16, 300, True)
LOADERS = {LORAFUSION: module_loading.lorafusion, MLORA: module_loading.mlora, UNSLOTH: module_loading.unsloth}
FIGURES = {LORAFUSION: "lorafusion", MLORA: "mlora", UNSLOTH: "unsloth", BASE: "base"}


def gated(directories: Mapping[str, Path]) -> dict[str, Any]:
    """The gate of all kernel benchmarks; meanwhile other processes compile the contestants' kernels."""
    wanted = [(place, name) for place, name in AHEAD if name in (OURS, BASE) or name in directories]
    with ProcessPoolExecutor(len(wanted), multiprocessing.get_context("spawn")) as pool:
        ahead = [pool.submit(compile_ahead, place, name, dict(directories)) for place, name in wanted]
        gate = run_gate()
        for (place, name), done in zip(wanted, ahead, strict=True):
            if done.exception() is not None:  # measuring shows it again
                print(f"not compiled ahead: {name} on {SPECS[place].name}: {done.exception()}", flush=True)
    return gate


def figures(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """x_RIVAL_min: the least of its time over ours, of all cells, eager and graphed; and of each mode alone."""
    found = {}
    for name, key in FIGURES.items():
        for mode, modes in (("", (EAGER, GRAPHED)), ("_eager", (EAGER,)), ("_graphed", (GRAPHED,))):
            ratios = [
                row["over_ours"]
                for row in rows
                if row["what"].endswith(f", {name}") and row["mode"] in modes and "over_ours" in row
            ]
            if ratios:
                found[f"x_{key}{mode}_min"] = round(min(ratios), 3)
    return found


def worst_errors(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """The worst relative error of each contestant in any cell."""
    found: dict[str, float] = {}
    for row in rows:
        if "agreement" in row:
            name = row["what"].rpartition(", ")[2]
            found[name] = max(found.get(name, 0.0), *row["agreement"].values())
    return found


def run(directories: Mapping[str, Path], device: str) -> CellResult:
    """All cells of the device."""
    shape, specs, dtype = (LLAMA_1B, SPECS, torch.bfloat16) if device == "cuda" else (TOY, TINY_SPECS, torch.float32)
    backbone, result = two_layers(shape, device, dtype), CellResult()
    for spec in specs:
        found = measure(LayerCell(spec, shape, backbone, dtype), directories)
        for row in found.rows:
            print(json.dumps(row), flush=True)
        result.rows += found.rows
        result.failures += found.failures
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in (LORAFUSION, MLORA, UNSLOTH):
        parser.add_argument(f"--{name.lower()}", type=Path, metavar="DIR", help=f"a checkout of {name}")
    parser.add_argument("--commit", help="the commit measured, where the tree is not a checkout")
    options = parser.parse_args()
    given = {name: getattr(options, name.lower()) for name in (LORAFUSION, MLORA, UNSLOTH)}
    directories = {name: path.resolve() for name, path in given.items() if path is not None}
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda":
        torch.cuda.init()  # Unsloth asks for streams when it is imported
    for name, directory in directories.items():  # before anything takes time
        LOADERS[name](directory)
    gate: dict[str, Any] = gated(directories) if device == "cuda" else {"passed": True}
    print("gate", gate, flush=True)
    result = run(directories, device)
    found = figures(result.rows)
    print(found, flush=True)
    if result.failures:
        raise SystemExit("\n".join(result.failures))
    if device == "cuda":
        gate["agreement"] = {"tolerance": TOLERANCE, "worst_error": worst_errors(result.rows)}
        print(write_result("rivals", gate, found, result.rows, options.commit))


if __name__ == "__main__":
    main()
