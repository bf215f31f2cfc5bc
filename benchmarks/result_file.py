"""Result files: benchmarks/results/<bench>-<device>[x<devices>].json, one format for all benchmarks. Knows no benchmark."""

import datetime
import json
import math
import platform
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import triton

RESULTS = Path(__file__).parent / "results"
SETTLE_MS = 400  # each call runs this long before its times count


def this_machine() -> dict[str, Any]:
    """{device, versions} of a result's header."""
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else platform.processor() or platform.machine()
    versions = {"python": platform.python_version(), "torch": torch.__version__, "triton": triton.__version__}
    return {"device": device, "versions": versions}


def device_name(machine: dict[str, Any]) -> str:
    """The device in file names: h100, a100, cpu."""
    device: str = machine["device"]
    return device.removeprefix("NVIDIA ").split()[0].lower() if device.startswith("NVIDIA ") else "cpu"


def median_ms(run: Callable[[], object], repeats: int = 10, warmup: int = 3) -> tuple[float, float, float]:
    """(median, min, max) milliseconds of one call."""
    return _spread(_timed(run, repeats, warmup))


def in_turns(calls: dict[str, Callable[[], object]], rounds: int = 3, each: int = 5) -> dict[str, tuple[float, float, float]]:
    """(median, min, max) milliseconds of each call, measured in rounds of `each` consecutive runs.

    Before a block counts, its own call has run for SETTLE_MS. A chip at its power limit sets its clock by its recent work: the
    same pass took 55.5 ms after another's memory-bound one and 59 ms after its own kind, as in training.
    """
    lead = {name: math.ceil(SETTLE_MS / median_ms(run, 3, 2)[0]) for name, run in calls.items()}
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, run in calls.items():
            times[name] += _timed(run, each, lead[name])
    return {name: _spread(found) for name, found in times.items()}


def in_pairs(run: Callable[[], object], over: Callable[[], object], pairs: int = 6, each: int = 5) -> list[float]:
    """The ratio of `run`'s time to that of `over` in each pair of blocks, every second pair in the other order.

    A block counts after its own call has run for SETTLE_MS, so both have the clocks that they have for long.
    """
    calls = (run, over)
    lead = [math.ceil(SETTLE_MS / median_ms(call, 3, 2)[0]) for call in calls]
    found = []
    for pair in range(pairs):
        ms = [0.0, 0.0]
        for which in (0, 1) if pair % 2 == 0 else (1, 0):
            ms[which] = _spread(_timed(calls[which], each, lead[which]))[0]
        found.append(ms[0] / ms[1])
    return found


def _timed(run: Callable[[], object], count: int, lead: int) -> list[float]:
    """Milliseconds between CUDA events around each of `count` consecutive calls, after `lead` more."""
    for _ in range(lead):
        run()
    pairs = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(count)]
    for begin, end in pairs:
        begin.record()
        run()
        end.record()
    torch.cuda.synchronize()
    return [begin.elapsed_time(end) for begin, end in pairs]


def _spread(times: Sequence[float]) -> tuple[float, float, float]:
    ordered = sorted(times)
    return ordered[len(ordered) // 2], ordered[0], ordered[-1]


def current_commit() -> str:
    """The measured commit, "+" if the tree had changes; unknown outside a checkout."""
    try:
        head = subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True
        ).stdout.strip()
        changed = subprocess.run(["git", "status", "--porcelain", "-uno"], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return head + ("+" if changed.strip() else "")


def write_result(
    bench: str,
    gate: dict[str, Any],
    figures: dict[str, float],
    rows: list[dict[str, Any]],
    commit: str | None = None,
    devices: int | None = None,
    machine: dict[str, Any] | None = None,
) -> Path:
    """Write the result file and return its path. devices: how many there were, for the name of a benchmark of several. machine:
    as of `this_machine`, where it was measured on another. Raises ValueError if the gate has not passed."""
    if not gate["passed"]:
        raise ValueError(f"the gate of {bench} did not pass: {gate}")
    machine = machine or this_machine()
    result = {
        **machine,
        "commit": commit or current_commit(),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": f"python -m benchmarks.{bench} "
        + " ".join(Path(word).name if word.startswith("/") else word for word in sys.argv[1:]),
        "gate": gate,
        "figures": figures,
        "rows": rows,
    }
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{bench}-{device_name(machine)}{f'x{devices}' if devices else ''}.json"
    path.write_text(json.dumps(result, indent=1) + "\n")
    return path
