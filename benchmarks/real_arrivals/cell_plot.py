"""Plots a trace's cells: completion and p99 slowdown of each policy over EASY-WSAP's, by load."""

from pathlib import Path
from typing import Any

from benchmarks.bar_panels import Layout, Panel, draw_panels

_COLOURS = {
    "fcfs": "#c9c9c9", "easy": "#a9a9a9", "sjf": "#d08a2e", "easy_wsap": "#7f8fb0", "rules": "#6aa84f", "ours": "#1f5fbf",
}  # fmt: skip
_MEASURES = (("completion_weighted", "weighted completion"), ("slowdown_p99", "p99 slowdown"))
_LAYOUT = Layout(width=470, unit=150, most=2.0, labels=60)


def draw_cells(source: str, rows: list[dict[str, Any]], path: Path) -> None:
    """Write the plot of `source`'s rows, as `cell_figures.rows_of` makes them: all windows, without fair share."""
    mine = [row for row in rows if row["part"] == source and row["windows"] == "all" and not row["fair"]]
    cells = {
        load: {row["policy"]: row for row in mine if row["load"] == load} for load in sorted({row["load"] for row in mine})
    }
    panels = [
        Panel(
            f"{title} over EASY-WSAP's",
            [
                (f"load {load:g}", {policy: at_load[policy][key] / at_load["easy_wsap"][key] for policy in _COLOURS})
                for load, at_load in cells.items()
            ],
        )
        for key, title in _MEASURES
    ]
    draw_panels(f"{source}: less is better", panels, _COLOURS, _LAYOUT, path)
