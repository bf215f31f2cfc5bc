"""The cells of the sharing benchmark, each one replay, and the figures that follow from them.

Even windows chose the default bound, odd ones are reported. Each seed is another window and another draw of bases.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import numpy as np

from benchmarks.real_arrivals.windows import GPUS, REAL, window_of
from benchmarks.sharing_sim.fleet import Fleet, bases_of, bursts
from benchmarks.sharing_sim.idealised import least_completion
from benchmarks.sharing_sim.policies import POLICIES, PREEMPTING, RANKS, SHARING
from benchmarks.simulator.run_record import LEAVE_SECONDS
from contract.task_spec import MAX_SLOWDOWN

LOADS = (0.7, 1.5, 3.0)
BURST_LOAD = 1.5
SEEDS = (0, 1, 2)
PARTS, RIVALS = ("joining", "preempting"), ("mlora", "tlora", "plora")
OF_PREEMPTING = "_of_preempting"
BASES, MAIN_BASES = (1, 4, 16), 4
BOUNDS = (2.0, 3.0, 4.0)  # of which the even windows chose the default
Result = dict[str, float]
_MEANT = ("wct", "p99", "least", "idealised")  # of an exclusive placement


@dataclass(frozen=True)
class Cell:
    """One replay. `load` 0 stands for bursts at `BURST_LOAD`."""

    source: str
    load: float
    window: int
    policy: str
    bases: int = MAIN_BASES
    bound: float = MAX_SLOWDOWN


def reported() -> list[Cell]:
    """The most important first: ours beside exclusive placement, then its parts, the rivals, and other numbers of bases."""
    places = [(source, load, 2 * seed + 1) for seed in SEEDS for source in REAL for load in (*LOADS, 0.0)]
    found = [Cell(*place, policy) for place in places for policy in ("exclusive", "ours")]
    found += [Cell(*place, policy) for place in places for policy in (*PARTS, *RIVALS)]
    return found + [Cell(*place, "ours", bases) for bases in BASES if bases != MAIN_BASES for place in places]


def choosing() -> list[Cell]:
    found = []
    for source in REAL:
        for load in (0.7, 1.5, 3.0):
            for at in (0, 2):
                found.append(Cell(source, load, at, "exclusive"))
                found += [Cell(source, load, at, "ours", MAIN_BASES, bound) for bound in BOUNDS]
    return found


def run_cell(cell: Cell) -> Result:
    """Weighted completion and p99 slowdown of the cell, and of every exclusive one the completion if nobody ever waited or was
    slowed, `least`, and under an idealised placement, `idealised`."""
    windows = {"philly": 6, "muri": 4, "acme": 12}[cell.source]
    tasks = window_of(cell.source, cell.load or BURST_LOAD, cell.window % windows)
    tasks = tasks if cell.load else bursts(tasks)
    RANKS.clear()
    RANKS.update({task.id: task.rank for task in tasks})
    bases = bases_of(tasks, cell.bases, cell.window)
    leave = LEAVE_SECONDS if cell.policy in PREEMPTING else None
    fleet = Fleet(tasks, bases, POLICIES[cell.policy], cell.bound, GPUS, share=cell.policy in SHARING, leave=leave)
    found = fleet.replay()
    weights = [task.priority for task in tasks]
    completions = [found.ended[task.id] - task.at for task in tasks]
    slowdowns = [seconds / task.true for seconds, task in zip(completions, tasks, strict=True)]
    bounds = {
        "least": float(np.average([task.true for task in tasks], weights=weights)),
        "idealised": least_completion(tasks, GPUS),
    }
    return {
        "wct": float(np.average(completions, weights=weights)),
        "p99": float(np.percentile(slowdowns, 99)),
        **(bounds if cell.policy == "exclusive" else {}),
        "beside": max(found.beside.values()),
        "joins": found.joins,
        "preempted": found.preempted,
        "checked": found.checked,
    }


def rows_of(found: Mapping[Cell, Result]) -> list[dict[str, Any]]:
    """A row for each trace, load, policy and number of bases: means over the windows, and what is saved beside exclusive
    placement in the same windows, and, as `_of_preempting`, beside exclusive placement that preempts."""
    rows = []
    kinds = dict.fromkeys((cell.source, cell.load, cell.policy, cell.bases, cell.bound) for cell in found)
    for source, load, policy, bases, bound in kinds:
        mine = [
            r
            for c, r in found.items()
            if (c.source, c.load, c.policy, c.bases, c.bound) == (source, load, policy, bases, bound)
        ]
        means = {key: fmean(r[key] for r in mine) for key in ("wct", "p99", "joins", "preempted")}
        base, preempting = _means(found, source, load, "exclusive"), _means(found, source, load, "preempting")
        rows.append({
            "trace": source, "load": load or f"bursts at {BURST_LOAD:g}", "policy": policy, "bases": bases, "bound": bound,
            "windows": len(mine), "wct_seconds": means["wct"], "slowdown_p99": means["p99"], "joins": means["joins"],
            "preempted": means["preempted"],
            "beside_max": max(r["beside"] for r in mine),
            "exclusive_wct_seconds": base["wct"], "exclusive_slowdown_p99": base["p99"], "least_wct_seconds": base["least"],
            "wct_saved": 1 - means["wct"] / base["wct"], "p99_saved": 1 - means["p99"] / base["p99"],
            "most_that_can_be_saved": 1 - base["least"] / base["wct"],
            "idealised_saved": 1 - base["idealised"] / base["wct"],
            **{f"{key}_saved{OF_PREEMPTING}": 1 - means[key] / preempting[key] for key in ("wct", "p99") if preempting},
        })  # fmt: skip
    return rows


def _means(found: Mapping[Cell, Result], source: str, load: float, policy: str) -> dict[str, float]:
    """Means over the windows of an exclusive placement; empty where it was not replayed."""
    mine = [result for cell, result in found.items() if (cell.source, cell.load, cell.policy) == (source, load, policy)]
    return {key: fmean(result[key] for result in mine) for key in mine[0] if key in _MEANT} if mine else {}


def figures_of(rows: Iterable[dict[str, Any]]) -> dict[str, float]:
    """With 4 bases. wct_<trace>: fraction of weighted completion saved beside exclusive placement, the least over loads from
    1.5; p99_worst and wct_worst: the least saved in any cell. The same of joins or preemption alone, of the rivals, and with 1
    and 16 bases, by name; `_of_preempting`: ours beside exclusive placement that preempts; `_idealised`: `idealised.py`."""
    rows = list(rows)
    figures: dict[str, float] = {}
    kinds = [
        ("ours", 4, "", ""),
        ("ours", 4, OF_PREEMPTING, OF_PREEMPTING),
        ("ours", 1, "", "_1_base"),
        ("ours", 16, "", "_16_bases"),
    ]
    kinds += [(policy, 4, "", f"_{policy}") for policy in (*PARTS, *RIVALS)]
    for policy, bases, saved, ending in kinds:
        some = [row for row in rows if (row["policy"], row["bases"]) == (policy, bases)]
        if not some:
            continue
        for source in REAL:
            loaded = [row for row in some if row["trace"] == source and _loaded(row)]
            figures[f"wct_{source}{ending}"] = min(row[f"wct_saved{saved}"] for row in loaded)
            figures[f"wct_{source}_mean{ending}"] = fmean(row[f"wct_saved{saved}"] for row in loaded)
            if not ending:
                figures[f"wct_{source}_most"] = fmean(row["most_that_can_be_saved"] for row in loaded)
                figures[f"wct_{source}_idealised"] = min(row["idealised_saved"] for row in loaded)
                figures[f"wct_{source}_mean_idealised"] = fmean(row["idealised_saved"] for row in loaded)
        figures[f"p99_worst{ending}"] = min(row[f"p99_saved{saved}"] for row in some)
        figures[f"wct_worst{ending}"] = min(row[f"wct_saved{saved}"] for row in some)
    return figures


def _loaded(row: dict[str, Any]) -> bool:
    return isinstance(row["load"], str) or row["load"] >= BURST_LOAD
