"""Agreement and times of all contestants on one cell, eager and graphed. Knows contestants by name; writes no files.

What a rival's code raises on versions that it was not written for ends that rival's part of the cell, not the others'.
"""

import gc
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from triton.errors import TritonError

from benchmarks.llama_shapes import LLAMA_1B
from benchmarks.result_file import in_turns
from benchmarks.rivals import module_loading
from benchmarks.rivals.contestant import Contestant, Outcome, agrees, compare, truth
from benchmarks.rivals.layer_cell import SPECS, LayerCell, two_layers
from benchmarks.rivals.lorafusion_layer import LoraFusionLayer
from benchmarks.rivals.mlora_layer import MLoraLayer
from benchmarks.rivals.our_layer import OurLayer
from benchmarks.rivals.unsloth_layer import UnslothLayer

OURS, BASE, LORAFUSION, MLORA, UNSLOTH = "ours", "base alone", "LoRAFusion", "mLoRA", "Unsloth"
RIVALS: dict[str, Callable[[LayerCell, Path], Contestant]] = {
    LORAFUSION: LoraFusionLayer,
    MLORA: MLoraLayer,
    UNSLOTH: UnslothLayer,
}
EAGER, GRAPHED = "eager", "graphed"
TOLERANCE = 0.03  # of each relative error; plain PyTorch in bf16 has up to 0.014
BROKEN = (RuntimeError, ImportError, TypeError, ValueError, AttributeError, AssertionError, TritonError)
WARMUPS = 2  # runs on the capture's stream before it: what a rival allocates once must not come from the graph's pool
# Contestants whose kernels other processes compile while the gate runs: the place of a cell, and a name.
AHEAD = ((0, OURS), (2, OURS), (0, BASE), (0, LORAFUSION), (2, LORAFUSION), (0, UNSLOTH))


@dataclass
class CellResult:
    """rows: one a contestant and mode. failures: who was not timed, and why."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class _Ready:
    """A contestant that agrees, and its errors."""

    contestant: Contestant
    errors: dict[str, float]


def makers(cell: LayerCell, directories: Mapping[str, Path]) -> dict[str, Callable[[], Contestant]]:
    """How each contestant is made, ours first. directories: the rivals' checkouts."""
    found: dict[str, Callable[[], Contestant]] = {OURS: lambda: OurLayer(cell, True), BASE: lambda: OurLayer(cell, False)}
    for name, directory in directories.items():
        found[name] = lambda made=RIVALS[name], at=directory: made(cell, at)  # type: ignore[misc]
    return found


def compile_ahead(place: int, name: str, directories: Mapping[str, Path]) -> None:
    """Run a contestant once on a cell, for the compiled kernels that this leaves in Triton's cache."""
    cell = LayerCell(SPECS[place], LLAMA_1B, two_layers(LLAMA_1B, "cuda", torch.bfloat16), torch.bfloat16)
    makers(cell, directories)[name]().settle()
    torch.cuda.synchronize()


def measure(cell: LayerCell, directories: Mapping[str, Path]) -> CellResult:
    """All contestants on one cell; without a GPU their agreement alone."""
    wants = {name: truth(cell, adapted=name != BASE) for name in (OURS, BASE)}
    result, ready = CellResult(), {}
    for name, make in makers(cell, directories).items():
        found = _checked(cell, name, make, wants[BASE if name == BASE else OURS], result)
        if found is not None:
            ready[name] = found
    if OURS not in ready or BASE not in ready:
        raise SystemExit(f"nothing is timed: {'; '.join(result.failures)}")
    _empty_caches()
    _time(cell, EAGER, {name: own.contestant.run for name, own in ready.items()}, ready, directories, result)
    if cell.device == "cpu":
        return result
    graphs = {}
    for name, own in ready.items():
        graph = _captured(cell, name, own.contestant, wants[BASE if name == BASE else OURS], result)
        if graph is not None:
            graphs[name] = graph
    _time(cell, GRAPHED, {name: graph.replay for name, graph in graphs.items()}, ready, directories, result)
    return result


def _checked(
    cell: LayerCell, name: str, make: Callable[[], Contestant], want: Outcome, result: CellResult
) -> _Ready | None:  # fmt: skip
    """The contestant after one run, if it agrees with `want`."""
    try:
        contestant = make()
        contestant.settle()
        errors = compare(contestant.outcome(), want)
    except BROKEN as error:
        traceback.print_exc()
        result.failures.append(f"{name} fails on {cell.spec.name}: {_first_line(error)}")
        return None
    print(cell.spec.name, name, {key: round(value, 5) for key, value in errors.items()}, flush=True)
    if not agrees(errors, TOLERANCE):
        result.failures.append(f"{name} does not agree on {cell.spec.name}: {errors}")
        return None
    return _Ready(contestant, errors)


def _captured(
    cell: LayerCell, name: str, contestant: Contestant, want: Outcome, result: CellResult
) -> torch.cuda.CUDAGraph | None:  # fmt: skip
    """A graph of one run, if the contestant can be captured and its replay agrees. A row says why not."""
    before, stream = torch.cuda.current_stream(), torch.cuda.Stream()
    graph = torch.cuda.CUDAGraph()
    try:
        stream.wait_stream(before)
        with torch.cuda.stream(stream):
            for _ in range(WARMUPS):
                contestant.run()
        before.wait_stream(stream)
        torch.cuda.synchronize()
        _empty_caches()
        with torch.cuda.graph(graph, stream=stream):
            contestant.run()
        cell.arena.grad.zero_()  # where ours are, so that no earlier run's are compared
        graph.replay()
        errors = compare(contestant.outcome(), want)
    except BROKEN as error:
        traceback.print_exc()
        result.rows.append(_row(cell, name, GRAPHED) | {"error": _first_line(error), "note": contestant.note})
        return None
    finally:
        torch.cuda.set_stream(before)  # a capture that fails to end leaves its own stream current
    if not agrees(errors, TOLERANCE):
        result.failures.append(f"{name} does not agree on {cell.spec.name}, graphed: {errors}")
        return None
    return graph


def _time(
    cell: LayerCell,
    mode: str,
    runs: dict[str, Callable[[], object]],
    ready: Mapping[str, _Ready],
    directories: Mapping[str, Path],
    result: CellResult,
) -> None:
    """Append a row for each of `runs`, timed in turns; on the host without times."""
    times = in_turns(runs) if cell.device != "cpu" else {}
    for name in runs:
        row = _row(cell, name, mode) | {"agreement": ready[name].errors, "note": ready[name].contestant.note}
        if name in times:
            ms, least, most = times[name]
            row |= {"ms": ms, "least_ms": least, "most_ms": most}
            row |= {"over_ours": ms / times[OURS][0]} if OURS in times else {}
        if name in directories:
            row["version"] = module_loading.version_of(directories[name])
        result.rows.append(row)


def _row(cell: LayerCell, name: str, mode: str) -> dict[str, Any]:
    return {
        "what": f"one layer, forward + backward, {name}", "cell": cell.spec.name, "mode": mode, "tokens": cell.flat.size,
        "adapters": cell.spec.adapters,
    }  # fmt: skip


def _first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"


def _empty_caches() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
