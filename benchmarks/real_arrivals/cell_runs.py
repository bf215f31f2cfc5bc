"""Runs cells in parallel and resumes: each result is one JSON line, kept under a fingerprint of the code that made it.

Knows no figures. Workers give way to other work by `niceness`; plan times on a shared machine are upper bounds.
"""

import hashlib
import json
import os
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import benchmarks.real_arrivals
import benchmarks.simulator
import service.scheduler.core
from benchmarks.real_arrivals.cells import Cell, run_cell

Results = dict[Cell, dict[str, Any]]
_CODE = (benchmarks.real_arrivals, benchmarks.simulator, service.scheduler.core)
_PICTURES = ("cell_figures.py", "cell_plot.py")  # read results, make none


def fingerprint() -> str:
    """SHA-256 over the sources of the planner, the simulator and the cells."""
    digest = hashlib.sha256()
    for package in _CODE:
        for file in sorted(Path(package.__path__[0]).rglob("*.py")):
            if file.name not in _PICTURES:
                digest.update(file.name.encode() + file.read_bytes())
    return digest.hexdigest()[:16]


def run_cells(cells: Sequence[Cell], kept: Path, workers: int, niceness: int = 0) -> Results:
    """The result of each cell: read from `kept` where the same code made it, otherwise run now and appended there."""
    code, wanted = fingerprint(), set(cells)
    kept.parent.mkdir(parents=True, exist_ok=True)
    _drop_cut_line(kept)
    found = {cell: result for cell, result in _read(kept, code) if cell in wanted}
    todo = [cell for cell in cells if cell not in found]
    with kept.open("a") as lines:
        for cell, result in _run(todo, workers, niceness):
            found[cell] = result
            lines.write(json.dumps({"code": code, "cell": vars(cell), "result": result}) + "\n")
            lines.flush()
            print(f"{cell.name} ended, {len(found)}/{len(cells)}", file=sys.stderr, flush=True)
    return found


def _run(cells: Sequence[Cell], workers: int, niceness: int) -> Iterator[tuple[Cell, dict[str, Any]]]:
    """Each result when it is there; a single worker is this process."""
    if workers <= 1:
        yield from ((cell, run_cell(cell)) for cell in cells)
        return
    with ProcessPoolExecutor(workers, initializer=os.nice, initargs=(niceness,)) as pool:
        running = {pool.submit(run_cell, cell): cell for cell in cells}
        for done in as_completed(running):
            yield running[done], done.result()


def _read(kept: Path, code: str) -> Iterator[tuple[Cell, dict[str, Any]]]:
    for line in kept.read_text().splitlines() if kept.exists() else ():
        said = json.loads(line)
        if said["code"] == code:
            yield Cell(**said["cell"]), said["result"]


def _drop_cut_line(kept: Path) -> None:
    """Remove a last line without its end: its writer was stopped in the middle."""
    if kept.exists() and not (text := kept.read_text()).endswith("\n"):
        kept.write_text(text[: text.rfind("\n") + 1])
