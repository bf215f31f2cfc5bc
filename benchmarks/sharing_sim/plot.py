"""Plots the sharing benchmark: weighted completion of each policy over exclusive placement's, a panel for each trace."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.bar_panels import Layout, Panel, draw_panels

_COLOURS = {
    "exclusive": "#7f8fb0", "preempting": "#a9c4ee", "joining": "#5d93dd", "ours": "#1f5fbf",
    "tlora": "#d08a2e", "plora": "#6aa84f", "mlora": "#c9c9c9",
}  # fmt: skip
_LAYOUT = Layout(width=330, unit=130, most=1.6, labels=100)


def draw(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Write the plot of these rows with 4 bases."""
    mine = [row for row in rows if row["bases"] == 4]
    loads = list(dict.fromkeys(row["load"] for row in mine))
    panels = []
    for trace in dict.fromkeys(row["trace"] for row in mine):
        groups = [
            (
                load if isinstance(load, str) else f"load {load:g}",
                {row["policy"]: 1 - row["wct_saved"] for row in mine if (row["trace"], row["load"]) == (trace, load)},
            )
            for load in loads
        ]
        panels.append(Panel(f"{trace}: completion over exclusive", groups))
    draw_panels("Sharing executors, 4 bases: less is better", panels, _COLOURS, _LAYOUT, path)
