"""Sharing executors on real traces: `nice -n 19 python -m benchmarks.sharing_sim`, about three minutes of one core.

Every plan is checked by the simulator's own checker; one bad plan and nothing is written. `--choose` runs the even windows with
several bounds instead, which chose the default of `max_slowdown`.
"""

import argparse
import hashlib
import json
import platform
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import benchmarks.sharing_sim
import benchmarks.simulator
import service.scheduler.core
from benchmarks.sharing_sim.cells import Cell, Result, choosing, figures_of, reported, rows_of, run_cell
from benchmarks.sharing_sim.plot import draw

RESULT = Path(__file__).parents[1] / "results" / "sharing_sim-cpu.json"
KEPT = Path(__file__).parents[2] / "build" / "sharing_sim-runs.jsonl"
NOTE = (
    "64 GPUs; every task of the 1B shape with rows of 187 tokens, batches of 1, 2, 4 or 8 a GPU and one job, step times as "
    "measured on an H200; bases by Zipf; exclusive placement and ours by rules alone, without CP-SAT; ours preempts running "
    "tasks for much shorter ones, `joining` does not, and `preempting` is exclusive placement that does; cores shared with "
    "other work"
)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sharing_sim", description=__doc__)
    parser.add_argument("--choose", action="store_true", help="the even windows, with bounds of 2, 3 and 4")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--first", type=int, help="only the first so many cells")
    parser.add_argument("--kept", type=Path, default=KEPT, help="finished replays, to resume from")
    parser.add_argument("--out", type=Path, default=RESULT)
    options = parser.parse_args()
    cells = (choosing() if options.choose else reported())[: options.first]
    found = _run(cells, options.workers, options.kept)
    before: dict[str, Any] = json.loads(options.out.read_text()) if options.out.exists() else {"figures": {}, "rows": []}
    rows = rows_of(found)
    part = "chose" if options.choose else "reported"
    kept = [row for row in before["rows"] if row["part"] != part]
    figures = before["figures"] if options.choose else figures_of(rows)
    said = {
        "device": f"{platform.machine()} CPU",
        "versions": {"python": platform.python_version(), "ortools": version("ortools"), "numpy": version("numpy")},
        "commit": subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False).stdout.strip(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": " ".join(["python -m benchmarks.sharing_sim", *sys.argv[1:]]),
        "note": NOTE,
        "gate": {
            "tolerance": 0, "worst_error": 0, "compared": round(sum(r["checked"] for r in found.values())), "passed": True,
        },
        "figures": figures,
        "rows": [*kept, *({"part": part, **row} for row in rows)],
    }  # fmt: skip
    options.out.write_text(json.dumps(said, indent=1) + "\n")
    if not options.choose:
        draw(rows, options.out.with_suffix(".svg"))


def _run(cells: list[Cell], workers: int, kept: Path) -> dict[Cell, Result]:
    """Each cell's result: read from `kept` where the same code made it, otherwise run now and appended there."""
    kept.parent.mkdir(parents=True, exist_ok=True)
    code, found = _fingerprint(), dict[Cell, Result]()
    for line in kept.read_text().splitlines() if kept.exists() else ():
        said = json.loads(line)
        if said["code"] == code:
            found[Cell(**said["cell"])] = said["result"]
    todo = [cell for cell in cells if cell not in found]
    with ProcessPoolExecutor(workers) as pool, kept.open("a") as lines:
        for cell, result in zip(todo, pool.map(run_cell, todo), strict=True):
            found[cell] = result
            lines.write(json.dumps({"code": code, "cell": vars(cell), "result": result}) + "\n")
            lines.flush()
            print(f"{cell} {result['wct']:.0f} s, {len(found)} are done", file=sys.stderr, flush=True)
    return {cell: found[cell] for cell in cells}


def _fingerprint() -> str:
    """SHA-256 over the sources of the planner's core, the simulator and these cells."""
    digest = hashlib.sha256()
    for package in (benchmarks.sharing_sim, benchmarks.simulator, service.scheduler.core):
        for file in sorted(Path(package.__path__[0]).rglob("*.py")):
            if file.name not in ("plot.py", "__main__.py"):
                digest.update(file.name.encode() + file.read_bytes())
    return digest.hexdigest()[:16]


if __name__ == "__main__":
    main()
