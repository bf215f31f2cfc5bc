"""Plots of the sweeps as plain SVG: samples saved by each pattern (ALTO figure 15), and ranks by warmup (figure 16)."""

from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

_WIDTH, _HEIGHT, _MARGIN = 1100, 240, 60
_COLOURS = {"underperforming": "#4477aa", "overfitting": "#ee6677", "diverging": "#ccbb44"}


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """Write the plot of a report's rows."""
    shapes = [*_bars(rows, _MARGIN), *_lines(rows, 2 * _HEIGHT)]
    total = f'width="{_WIDTH + 2 * _MARGIN}" height="{3 * _HEIGHT + 3 * _MARGIN}"'
    body = "\n".join(shapes)
    path.write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" {total} font-family="sans-serif" font-size="12">\n{body}\n</svg>\n'
    )


def _bars(rows: list[dict[str, Any]], top: int) -> list[str]:
    """One group per pair, one bar per policy: the share of samples that each pattern saved, and the ratio of the best loss."""
    bars = [(row, policy, said) for row in rows for policy, said in row["policies"].items()]
    step = _WIDTH / len(bars)
    shapes = [_text(_MARGIN, top - 30, "Samples saved by each pattern; the number is the best loss over full training's")]
    shapes += [
        f'<rect x="{_MARGIN + 320 + 130 * at}" y="{top - 24}" width="12" height="12" fill="{colour}"/>'
        + _text(_MARGIN + 336 + 130 * at, top - 14, name)
        for at, (name, colour) in enumerate(_COLOURS.items())
    ]
    for at, (row, policy, said) in enumerate(bars):
        x, y = _MARGIN + at * step, float(top + _HEIGHT)
        for reason, colour in _COLOURS.items():
            height = said["saved_by"].get(reason, 0.0) * _HEIGHT
            y -= height
            shapes.append(f'<rect x="{x:.1f}" y="{y:.1f}" width="{0.8 * step:.1f}" height="{height:.1f}" fill="{colour}"/>')
        shapes.append(_text(x, y - 4, f"{said['ratio']:.3f}", 9))
        name = f"{row['pair']} {row['seed']} {policy}"
        shapes.append(f'<g transform="translate({x + 4:.1f},{top + _HEIGHT + 8}) rotate(45)">{_text(0, 0, name, 9)}</g>')
    return shapes


def _lines(rows: list[dict[str, Any]], top: int) -> list[str]:
    """Rank correlation between the loss at a share of the steps and the best, one line per pair."""
    shapes = [_text(_MARGIN, top - 8, "Spearman rank correlation with the final best, at 1 to 20 % of the steps")]
    shapes.append(f'<rect x="{_MARGIN}" y="{top}" width="{_WIDTH}" height="{_HEIGHT}" fill="none" stroke="#999"/>')
    for at, row in enumerate(rows):
        colour = f"hsl({at * 360 // len(rows)},60%,45%)"
        points = [
            (_MARGIN + rank["share"] / 0.2 * _WIDTH, top + _HEIGHT * (1 - max(0.0, rank["spearman"])))
            for rank in row["rankings"]
        ]
        shapes += [
            f'<line x1="{x:.1f}" y1="{y:.1f}" x2="{u:.1f}" y2="{v:.1f}" stroke="{colour}"/>'
            for (x, y), (u, v) in pairwise(points)
        ]
        name = f"{row['pair']} {row['seed']}"
        shapes.append(f'<g fill="{colour}">{_text(_MARGIN + 150 * (at % 7), top + _HEIGHT + 20 + 16 * (at // 7), name)}</g>')
    return shapes


def _text(x: float, y: float, words: str, size: int = 12) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}">{escape(words)}</text>'
