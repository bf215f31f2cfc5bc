"""Result files: benchmarks/results/<bench>-<device>.json, one format for all benchmarks. Knows nothing of what is measured."""

import datetime
import json
import platform
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import triton

RESULTS = Path(__file__).parent / "results"


def device_name() -> str:
    """The device as a file name knows it: h100, a100, cpu."""
    if not torch.cuda.is_available():
        return "cpu"
    return torch.cuda.get_device_name().removeprefix("NVIDIA ").split()[0].lower()


def median_ms(run: Callable[[], object], repeats: int = 10, warmup: int = 3) -> tuple[float, float, float]:
    """(median, least, most) milliseconds between CUDA events around one call."""
    for _ in range(warmup):
        run()
    pairs = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(repeats)]
    for begin, end in pairs:
        begin.record()
        run()
        end.record()
    torch.cuda.synchronize()
    times = sorted(begin.elapsed_time(end) for begin, end in pairs)
    return times[len(times) // 2], times[0], times[-1]


def in_turns(calls: dict[str, Callable[[], object]], rounds: int, warmup: int = 3) -> dict[str, tuple[float, float, float]]:
    """(median, least, most) milliseconds of each call, one of each in every round: all are measured by the same rule, under the
    same clocks."""
    for _ in range(warmup):
        for run in calls.values():
            run()
    marks: dict[str, list[tuple[torch.cuda.Event, torch.cuda.Event]]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, run in calls.items():
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            run()
            end.record()
            marks[name].append((begin, end))
    torch.cuda.synchronize()
    times = {name: sorted(begin.elapsed_time(end) for begin, end in pairs) for name, pairs in marks.items()}
    return {name: (each[len(each) // 2], each[0], each[-1]) for name, each in times.items()}


def _commit() -> str:
    """The commit this was measured at, "+" where the tree had changes; unknown outside a checkout."""
    try:
        head = subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True
        ).stdout.strip()
        changed = subprocess.run(["git", "status", "--porcelain", "-uno"], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return head + ("+" if changed.strip() else "")


def write_result(
    bench: str, gate: dict[str, Any], figures: dict[str, float], rows: list[dict[str, Any]], commit: str | None = None
) -> Path:
    """Write the result file and return its path. Raises ValueError if the gate has not passed."""
    if not gate["passed"]:
        raise ValueError(f"the gate of {bench} did not pass: {gate}")
    result = {
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else platform.processor() or platform.machine(),
        "versions": {"python": platform.python_version(), "torch": torch.__version__, "triton": triton.__version__},
        "commit": commit or _commit(),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": f"python -m benchmarks.{bench} " + " ".join(sys.argv[1:]),
        "gate": gate,
        "figures": figures,
        "rows": rows,
    }
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{bench}-{device_name()}.json"
    path.write_text(json.dumps(result, indent=1) + "\n")
    return path
