"""The tables of docs/SCHEDULING.md, from the result file. Measures nothing."""

from typing import Any

from benchmarks.real_arrivals.cell_figures import FAIR_LOAD, TENANTED
from benchmarks.real_arrivals.cells import WEEK
from benchmarks.real_arrivals.windows import LOADS, SOURCES

_SHOWN = (("fcfs", "FCFS"), ("easy", "EASY"), ("sjf", "SJF"), ("rules", "rules alone"), ("ours", "Motet"))
_FAIR = (("fcfs", "FCFS"), ("sjf", "SJF"), ("easy_wsap", "EASY-WSAP"), ("ours", "Motet"))


def scheduling(result: dict[str, Any]) -> str:
    """Savings against EASY-WSAP by trace and load, and tenants under fair share, as Markdown."""
    rows = result["rows"]
    commit = result["parts"]["real"]["commit"][:7]
    lines = [
        "Saved against EASY-WSAP, % (negative: worse): weighted completion / p99 slowdown. 64 GPUs; all windows, in brackets\n"
        f"the half of them that chose nothing. {result['device']} shared with other work, commit {commit}.\n",
        "| trace, load | " + " | ".join(title for _, title in _SHOWN) + " | replan CPU p50 / p99 |",
        "|---" * (len(_SHOWN) + 2) + "|",
    ]
    for source in SOURCES:
        for load in LOADS:
            found = {(row["policy"], row["windows"]): row for row in rows if _is(row, source, load, fair=False)}
            cells = [_cell(found[policy, "all"]) for policy, _ in _SHOWN]
            cells[-1] += f" ({_cell(found['ours', 'held out'])})"
            ours = found["ours", "all"]
            replan = f"{ours['plan_cpu_ms_p50']:.0f} / {ours['plan_cpu_ms_p99']:.0f} ms"
            lines.append(f"| {source}, {load:g} | {' | '.join(cells)} | {replan} |")
    lines += [
        "",
        "Fair share on: mean completion in hours; the worst and the mean tenant's completion over its own isolated run;\n"
        "starts taken back an hour.\n",
        "| trace, load | " + " | ".join(title for _, title in _FAIR) + " |",
        "|---" * (len(_FAIR) + 1) + "|",
    ]
    for source, load in [*((source, FAIR_LOAD) for source in TENANTED), (WEEK, 0.0)]:
        alike = (row for row in rows if _is(row, source, load, fair=True) and row["windows"] == "all")
        by_policy = {row["policy"]: row for row in alike}
        name = f"{source}, {load:g}" if load else "Philly's week"
        lines.append(f"| {name} | " + " | ".join(_tenants(by_policy[policy]) for policy, _ in _FAIR) + " |")
    return "\n".join(lines)


def _is(row: dict[str, Any], source: str, load: float, fair: bool) -> bool:
    return (row["part"], row.get("load"), row.get("fair")) == (source, load, fair)


def _cell(row: dict[str, Any]) -> str:
    return f"{100 * row['completion_saved']:+.1f} / {100 * row['p99_saved']:+.0f}"


def _tenants(row: dict[str, Any]) -> str:
    hours = row["completion_mean"] / 3600
    return f"{hours:.2f}; {row['tenant_slowdown_max']:.2f}, {row['tenant_slowdown_mean']:.2f}; {row['preempted_per_hour']:.2g}"
