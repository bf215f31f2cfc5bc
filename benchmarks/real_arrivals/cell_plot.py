"""Plots a trace's cells as plain SVG: completion and p99 slowdown of each policy over EASY-WSAP's, by load. Uses no library."""

from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

_COLOURS = {
    "fcfs": "#c9c9c9", "easy": "#a9a9a9", "sjf": "#d08a2e", "easy_wsap": "#7f8fb0", "rules": "#6aa84f", "ours": "#1f5fbf",
}  # fmt: skip
_PANELS = (("completion_weighted", "weighted completion"), ("slowdown_p99", "p99 slowdown"))
_MOST = 2.0  # longer bars are cut here and labelled
_UNIT, _BAR, _GAP, _LEFT, _TOP, _PANEL = 150, 12, 14, 110, 50, 470


def draw_cells(source: str, rows: list[dict[str, Any]], path: Path) -> None:
    """Write the plot of `source`'s rows, as `cell_figures.rows_of` makes them: all windows, without fair share."""
    mine = [row for row in rows if row["part"] == source and row["windows"] == "all" and not row["fair"]]
    shapes, bottom = [], _TOP
    for column, (key, title) in enumerate(_PANELS):
        x = _LEFT + column * _PANEL
        y = _TOP
        shapes.append(f'<text x="{x}" y="{y - 8}">{title} over EASY-WSAP\'s</text>')
        for load in sorted({row["load"] for row in mine}):
            at_load = {row["policy"]: row for row in mine if row["load"] == load}
            shapes.append(f'<text x="{x - 60}" y="{y + 12}">load {load:g}</text>')
            for policy, colour in _COLOURS.items():
                ratio = at_load[policy][key] / at_load["easy_wsap"][key]
                width = min(ratio, _MOST) * _UNIT
                shapes.append(f'<rect x="{x}" y="{y}" width="{width:.1f}" height="{_BAR - 2}" fill="{colour}"/>')
                shapes.append(f'<text x="{x + width + 4:.1f}" y="{y + 9}" font-size="10">{ratio:.2f}</text>')
                y += _BAR
            y += _GAP
        one = x + _UNIT
        shapes.append(f'<line x1="{one}" y1="{_TOP}" x2="{one}" y2="{y - _GAP}" stroke="#333" stroke-dasharray="3"/>')
        bottom = max(bottom, y)
    for at, (policy, colour) in enumerate(_COLOURS.items()):
        shapes.append(f'<rect x="{_LEFT + at * 110}" y="{bottom}" width="10" height="10" fill="{colour}"/>')
        shapes.append(f'<text x="{_LEFT + at * 110 + 14}" y="{bottom + 9}">{policy}</text>')
    heading = f'<text x="{_LEFT - 60}" y="22" font-size="15">{escape(source)}: less is better</text>'
    size = f'width="{_LEFT + len(_PANELS) * _PANEL}" height="{bottom + 30}"'
    body = "\n".join([heading, *shapes])
    style = 'font-family="sans-serif" font-size="12"'
    path.write_text(f'<svg xmlns="http://www.w3.org/2000/svg" {size} {style}>\n{body}\n</svg>\n')
