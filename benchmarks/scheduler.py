"""The scheduler's figures, from the product's pure modules on a fake clock: `python -m benchmarks.scheduler`.

`simulator.check` passes every plan that counts; one bad plan and nothing is written. `--only` selects parts and preserves other
parts' results; `--only timing` needs a quiet machine. `--plot` and `--export` write a plot and the problems of each run to a
folder. `--only real --quick --out build/quick.json` is the small form for development. An interrupted run of the parts real and
week is resumed by the same command.
"""

import argparse
import json
import platform
import re
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.real_arrivals.parts import real, solver, switch, week
from benchmarks.simulator.experiments import Experiments

RESULT = Path(__file__).parent / "results" / "scheduler-cpu.json"
KEPT = Path(__file__).parent.parent / "build" / "scheduler-runs.jsonl"
PARTS: dict[str, Callable[[Experiments], None]] = {
    "timing": Experiments.timing, "eleven": Experiments.eleven, "gaps": Experiments.gaps, "figure12": Experiments.figure_12,
    "eta": Experiments.eta,
    "rolling": Experiments.rolling, "widths": Experiments.widths, "real": real, "week": week,
    "solver": solver, "switch": switch,
}  # fmt: skip


def options_of(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scheduler", description=__doc__)
    parser.add_argument(
        "--only", nargs="+", choices=PARTS, default=list(PARTS), help="parts to measure; others keep their figures"
    )
    parser.add_argument(
        "--seeds", nargs="+", type=int, default=[0, 1, 2, 3, 4, 5], help="of the rolling part; the first two of widths"
    )
    parser.add_argument("--tasks", type=int, default=300, help="of the parts rolling and widths")
    parser.add_argument("--bursts", action="store_true", help="the rolling part's arrivals in bursts of 20")
    parser.add_argument("--quick", action="store_true", help="the real part in about a minute: one window a trace, one load")
    parser.add_argument("--kept", type=Path, default=KEPT, help="finished runs of the parts real and week, to resume from")
    parser.add_argument("--workers", type=int, default=2, help="simulated runs side by side")
    parser.add_argument("--nice", type=int, default=19, help="priority of those parts' workers: 19 gives way to all else")
    parser.add_argument("--plot", type=Path, help="folder for a picture of each run")
    parser.add_argument("--export", type=Path, help="folder for every problem and plan, as JSON lines")
    parser.add_argument("--out", type=Path, default=RESULT)
    return parser.parse_args(arguments)


def main() -> None:
    options = options_of()
    for folder in (options.plot, options.export, options.out.parent):
        if folder:
            folder.mkdir(parents=True, exist_ok=True)
    for name in options.only:
        bench = Experiments(options)
        PARTS[name](bench)
        print(name, {key: round(value, 4) for key, value in bench.figures.items()}, flush=True)
        write(options.out, name, bench)


def write(out: Path, part: str, bench: Experiments) -> None:
    """Merge one part's results into the result file."""
    blank: dict[str, Any] = {"figures": {}, "rows": [], "parts": {}}
    before = json.loads(out.read_text()) if out.exists() else blank
    measured = {row["part"] for row in bench.rows}
    now = {
        "commit": subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False).stdout.strip(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": re.sub(r" --(kept|out|plot|export) \S+", "", " ".join(["python -m benchmarks.scheduler", *sys.argv[1:]])),
    }
    parts = before["parts"] | {part: now | {"compared": bench.checked}}
    said = {
        "device": f"{platform.machine()} CPU, {len_cpus()} cores",
        "versions": {"python": platform.python_version(), "ortools": version("ortools"), "numpy": version("numpy")},
        **now,
        "gate": {
            "tolerance": 0, "worst_error": 0, "compared": sum(each["compared"] or 0 for each in parts.values()), "passed": True,
        },
        "parts": parts,
        "figures": before["figures"] | bench.figures,
        "rows": [row for row in before["rows"] if row["part"] not in measured] + bench.rows,
    }  # fmt: skip
    out.write_text(json.dumps(said, indent=1) + "\n")


def len_cpus() -> int:
    return int(subprocess.run(["nproc"], capture_output=True, text=True, check=True).stdout)


if __name__ == "__main__":
    main()
