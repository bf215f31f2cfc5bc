"""The parts of the scheduler's benchmark on real arrivals: options in, figures and rows into the given experiments."""

from pathlib import Path

from benchmarks.real_arrivals.cell_figures import (
    cells_of,
    figures_of,
    rows_of,
    solver_cells,
    solver_figures,
    switch_cells,
    switch_figures,
    week_cells,
    week_figures,
)
from benchmarks.real_arrivals.cell_plot import draw_cells
from benchmarks.real_arrivals.cell_runs import Results, run_cells
from benchmarks.real_arrivals.cells import BOUND, WEEK, Cell
from benchmarks.real_arrivals.windows import SOURCES
from benchmarks.simulator.experiments import Experiments


def real(bench: Experiments) -> None:
    """Every policy on every window and load, with and without fair share; `--quick` takes one window at load 1.5."""
    o = bench.options
    found = _run(bench, cells_of(1, (1.5,), fair=False) if o.quick else cells_of(None))
    bench.figures |= figures_of(found)
    for source in SOURCES:
        draw_cells(source, bench.rows, Path(o.out).with_name(f"scheduler-{source}.svg"))


def solver(bench: Experiments) -> None:
    """The solver beside the rules alone where they see little: deadlines, mixed GPU types, drains."""
    bench.figures |= solver_figures(_run(bench, solver_cells()))


def switch(bench: Experiments) -> None:
    """Every window with a switch that takes four times as long: what preemption for shorter tasks still saves."""
    o = bench.options
    found = run_cells(switch_cells(), o.kept, o.workers, o.nice)
    bench.checked += sum(result.get("checked", 0) for result in found.values())
    bench.figures |= switch_figures(found)


def week(bench: Experiments) -> None:
    """A week of Philly at three times its pace on 128 GPUs: the five largest virtual clusters, fair share, preemption."""
    found = _run(bench, week_cells())
    (ours,) = (result for cell, result in found.items() if (cell.source, cell.policy) == (WEEK, "ours"))
    bench.figures |= week_figures(found)
    bench.figures["covered_wait_over_bound_philly"] = max(0.0, ours["covered_wait_max"] - BOUND)


def _run(bench: Experiments, cells: list[Cell]) -> Results:
    found = run_cells(cells, bench.options.kept, bench.options.workers, bench.options.nice)
    bench.checked += sum(result.get("checked", 0) for result in found.values())
    bench.rows += rows_of(found)
    return found
