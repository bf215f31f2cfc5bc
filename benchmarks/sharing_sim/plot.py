"""Plots the sharing benchmark as plain SVG: weighted completion of each policy over exclusive placement's. Uses no library."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

_COLOURS = {"exclusive": "#7f8fb0", "ours": "#1f5fbf", "tlora": "#d08a2e", "plora": "#6aa84f", "mlora": "#c9c9c9"}
_UNIT, _BAR, _GAP, _LEFT, _TOP, _PANEL, _MOST = 130, 12, 14, 110, 50, 330, 1.6


def draw(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Write the plot of these rows with 4 bases, a panel for each trace."""
    mine = [row for row in rows if row["bases"] == 4]
    shapes, bottom = [], _TOP
    for column, trace in enumerate(dict.fromkeys(row["trace"] for row in mine)):
        x, y = _LEFT + column * _PANEL, _TOP
        shapes.append(f'<text x="{x}" y="{y - 8}">{trace}: completion over exclusive</text>')
        for load in dict.fromkeys(row["load"] for row in mine):
            shapes.append(f'<text x="{x - 100}" y="{y + 12}">{load if isinstance(load, str) else f"load {load:g}"}</text>')
            for policy, colour in _COLOURS.items():
                row = next((r for r in mine if (r["trace"], r["load"], r["policy"]) == (trace, load, policy)), None)
                if row is None:
                    continue
                ratio = 1 - row["wct_saved"]
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
    heading = f'<text x="{_LEFT - 100}" y="22" font-size="15">Sharing executors, 4 bases: less is better</text>'
    size = f'width="{_LEFT + 3 * _PANEL}" height="{bottom + 30}"'
    body = "\n".join([heading, *shapes])
    path.write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="12">\n{body}\n</svg>\n'
    )
