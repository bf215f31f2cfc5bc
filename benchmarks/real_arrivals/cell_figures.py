"""Figures and rows from the cells' results: what each policy saves against EASY-WSAP, by trace and load. Reads no trace.

A fraction saved is 1 - ours / theirs over the means of a trace's windows at one load; negative is worse.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from statistics import fmean
from typing import Any

from benchmarks.real_arrivals.cell_runs import Results
from benchmarks.real_arrivals.cells import ALONE, SLOW_SWITCH, VARIANTS, WEEK, Cell
from benchmarks.real_arrivals.windows import LOADS, REAL, SOURCES, chooses

BASELINE = "easy_wsap"
POLICIES = ("fcfs", "easy", "sjf", BASELINE, "rules", "ours")
FAIR_LOAD = 1.5  # the load of the windows under fair share
FAIR = ("fcfs", "sjf", BASELINE, "ours")  # compared under fair share too
SOLVED = ("philly", "muri")  # traces of the solver's problems
TENANTED = ("philly", "muri")  # traces with several tenants
_MEANS = (
    "completion_mean", "completion_weighted", "slowdown_p99", "utilisation", "churn", "replans_per_hour", "preempted_per_hour",
    "preempted_for_shorter_per_hour", "slowdown_longest_max",
    "plan_ms_p50", "plan_ms_p99", "plan_cpu_ms_p50", "plan_cpu_ms_p99", "deadlines_missed",
)  # fmt: skip
_ALL_WAIT_SECONDS = 3600  # Jain's index says something only if all tenants waited at once for this long


def cells_of(windows: int | None, loads: Iterable[float] = LOADS, fair: bool = True) -> list[Cell]:
    """Every cell, longest runs first; at most `windows` windows of each trace (None: all)."""
    found = []
    for source, cut in SOURCES.items():
        for at in range(min(cut.count, windows or cut.count)):
            for load in loads:
                found += [Cell(source, load, at, policy) for policy in POLICIES]
                if fair and source in TENANTED and load == FAIR_LOAD:
                    found += [Cell(source, load, at, policy, fair=True) for policy in FAIR] + [Cell(source, load, at, ALONE)]
    return sorted(found, key=lambda cell: (cell.policy != "ours", -cell.load))


def week_cells() -> list[Cell]:
    return [Cell(WEEK, 0.0, 0, policy, fair=True) for policy in reversed(FAIR)] + [Cell(WEEK, 0.0, 0, ALONE)]


def solver_cells() -> list[Cell]:
    """Where the solver may earn its place: deadlines, mixed GPU types and drains on each trace at load 1.5."""
    return [
        Cell(source, 1.5, at, policy, variant=variant)
        for variant in VARIANTS
        for source in SOLVED
        for at in range(SOURCES[source].count)
        for policy in ("ours", "rules", BASELINE)
    ]


def solver_figures(found: Results) -> dict[str, float]:
    """What the solver saves over the rules alone: deadlines missed, weighted completion. Means over all windows."""

    def mean(variant: str, policy: str, key: str) -> float:
        return fmean(result[key] for cell, result in found.items() if (cell.variant, cell.policy) == (variant, policy))

    key = "completion_weighted"
    figures = {f"solver_saves_{v}": 1 - mean(v, "ours", key) / mean(v, "rules", key) for v in VARIANTS}
    missed = {policy: mean("deadlines", policy, "deadlines_missed") for policy in ("ours", "rules", BASELINE)}
    return figures | {f"deadlines_missed_{policy}": value for policy, value in missed.items()}


def switch_cells() -> list[Cell]:
    """Every window and load with a switch that takes several times as long, and the baseline, which makes none."""
    return [
        Cell(cell.source, cell.load, cell.window, policy, variant=variant)
        for cell in cells_of(None, fair=False)
        for policy, variant in (("ours", SLOW_SWITCH), (BASELINE, ""))
        if cell.policy == policy
    ]


def switch_figures(found: Results) -> dict[str, float]:
    """As `figures_of`, of the slow switch, over all windows."""
    slow = {replace(cell, variant=""): result for cell, result in found.items()}
    return {
        f"{name}_slow_switch": value for name, value in figures_of(slow).items() if name.endswith(("_min", "_mean", "_worst"))
    }


def rows_of(found: Results) -> list[dict[str, Any]]:
    """One row per trace, load, half, policy and fairness: means over windows, and the saving against EASY-WSAP beside it."""
    rows = []
    for source, load, fair, variant in sorted({(c.source, c.load, c.fair, c.variant) for c in found if c.policy != ALONE}):
        for half in ("all",) if source == WEEK else ("all", "chose", "held out"):
            for policy in FAIR if fair else POLICIES:
                mine, theirs = (list(_group(found, (source, load, fair, variant, p), half)) for p in (policy, BASELINE))
                if mine and theirs:
                    rows.append({
                        "part": f"{source} {variant}".strip(), "load": load, "windows": half, "policy": policy, "fair": fair,
                        **_means(found, mine), **_saved(found, mine, theirs),
                    })  # fmt: skip
    return rows


def figures_of(found: Results) -> dict[str, float]:
    """Over the nine cells of real traces, all windows; `_held_out` from the windows that chose nothing."""
    figures: dict[str, float] = {}
    for half, ending in (("all", ""), ("held out", "_held_out")):
        cells = [
            _saved(found, list(_group(found, (source, load, False, "", "ours"), half)), theirs)
            for source in REAL
            for load in LOADS
            if (theirs := list(_group(found, (source, load, False, "", BASELINE), half)))
        ]
        if cells:
            figures[f"wct_vs_easy_wsap_real_min{ending}"] = min(cell["completion_saved"] for cell in cells)
            figures[f"wct_vs_easy_wsap_real_mean{ending}"] = fmean(cell["completion_saved"] for cell in cells)
            figures[f"p99_vs_easy_wsap_real_worst{ending}"] = min(cell["p99_saved"] for cell in cells)
    return figures | replan_figures(found)


def replan_figures(found: Results) -> dict[str, float]:
    """The highest p99 of a replan over traces and loads, means over windows. `replan_p99_ms` is CPU time: a plan is one thread,
    and the wall clock of a shared machine counts its neighbours."""
    ours = [list(_group(found, (s, load, False, "", "ours"), "all")) for s in SOURCES for load in LOADS]
    times = {
        key: max((fmean(found[cell][key] for cell in cells) for cells in ours if cells), default=0.0)
        for key in ("plan_cpu_ms_p99", "plan_ms_p99")
    }
    return {"replan_p99_ms": times["plan_cpu_ms_p99"], "replan_wall_p99_ms": times["plan_ms_p99"]}


def week_figures(found: Results) -> dict[str, float]:
    """Philly's week under fair share: fractions saved against the same baseline under the same fair share."""
    week = {cell.policy: result for cell, result in found.items() if cell.source == WEEK}
    ours, alone = week["ours"], week[ALONE]["tenants"]
    worst = {policy: max(_slowdowns(result["tenants"], alone)) for policy, result in week.items() if policy != ALONE}
    return {
        "philly_fair_vs_easy_wsap": 1 - ours["completion_mean"] / week[BASELINE]["completion_mean"],
        "philly_fair_vs_sjf": 1 - ours["completion_mean"] / week["sjf"]["completion_mean"],
        "philly_worst_tenant_vs_easy_wsap": 1 - worst["ours"] / worst[BASELINE],
        "jain_philly": ours["jain"],
        "together_hours_philly": ours["together_seconds"] / 3600,
    }


def _group(found: Results, which: tuple[str, float, bool, str, str], half: str) -> Iterator[Cell]:
    """The cells of one (source, load, fair, variant, policy)."""
    for cell in found:
        alike = (cell.source, cell.load, cell.fair, cell.variant, cell.policy) == which
        if alike and (half == "all" or chooses(cell.window) == (half == "chose")):
            yield cell


def _means(found: Results, cells: list[Cell]) -> dict[str, Any]:
    said: dict[str, Any] = {key: fmean(found[cell][key] for cell in cells) for key in _MEANS}
    waited = [found[cell] for cell in cells if found[cell]["together_seconds"] >= _ALL_WAIT_SECONDS]
    said["jain"] = fmean(result["jain"] for result in waited) if waited and cells[0].source in (*TENANTED, WEEK) else None
    slowdowns = [
        _slowdowns(found[cell]["tenants"], found[alone]["tenants"])
        for cell in cells
        if (alone := Cell(cell.source, cell.load, cell.window, ALONE)) in found
    ]
    if slowdowns:
        said["tenant_slowdown_max"] = fmean(max(each) for each in slowdowns)
        said["tenant_slowdown_mean"] = fmean(fmean(each) for each in slowdowns)
    return said


def _saved(found: Results, mine: list[Cell], theirs: list[Cell]) -> dict[str, float]:
    def saved(key: str) -> float:
        return 1 - fmean(found[cell][key] for cell in mine) / fmean(found[cell][key] for cell in theirs)

    return {"completion_saved": saved("completion_weighted"), "p99_saved": saved("slowdown_p99")}


def _slowdowns(shared: dict[str, float], alone: dict[str, float]) -> list[float]:
    """Each tenant's mean completion over that of its isolated run."""
    return [shared[tenant] / seconds for tenant, seconds in alone.items()]
