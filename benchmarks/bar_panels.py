"""Plots panels of grouped bars, one bar for each policy's ratio to a baseline of 1, as plain SVG. Uses no library."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

_BAR, _GAP, _LEFT, _TOP = 12, 14, 110, 50


@dataclass(frozen=True)
class Panel:
    """groups: each one's label and its ratios by policy."""

    title: str
    groups: Sequence[tuple[str, Mapping[str, float]]]


@dataclass(frozen=True)
class Layout:
    """In pixels. width: of a panel. unit: of a ratio of 1. most: the ratio at which longer bars are cut. labels: how far left
    of a panel the labels of its groups begin."""

    width: int
    unit: int
    most: float
    labels: int


def draw_panels(heading: str, panels: Sequence[Panel], colours: Mapping[str, str], layout: Layout, path: Path) -> None:
    """Write the plot: panels side by side, bars in the order of `colours`, a dashed line at 1, the legend below."""
    shapes, bottom = [], _TOP
    for column, panel in enumerate(panels):
        x, y = _LEFT + column * layout.width, _TOP
        shapes.append(f'<text x="{x}" y="{y - 8}">{escape(panel.title)}</text>')
        for label, ratios in panel.groups:
            shapes.append(f'<text x="{x - layout.labels}" y="{y + 12}">{escape(label)}</text>')
            for policy, colour in colours.items():
                if policy in ratios:
                    shapes += _bar(x, y, ratios[policy], colour, layout)
                    y += _BAR
            y += _GAP
        one = x + layout.unit
        shapes.append(f'<line x1="{one}" y1="{_TOP}" x2="{one}" y2="{y - _GAP}" stroke="#333" stroke-dasharray="3"/>')
        bottom = max(bottom, y)
    for at, (policy, colour) in enumerate(colours.items()):
        shapes.append(f'<rect x="{_LEFT + at * 110}" y="{bottom}" width="10" height="10" fill="{colour}"/>')
        shapes.append(f'<text x="{_LEFT + at * 110 + 14}" y="{bottom + 9}">{policy}</text>')
    title = f'<text x="{_LEFT - layout.labels}" y="22" font-size="15">{escape(heading)}</text>'
    size = f'width="{_LEFT + len(panels) * layout.width}" height="{bottom + 30}"'
    body = "\n".join([title, *shapes])
    style = 'font-family="sans-serif" font-size="12"'
    path.write_text(f'<svg xmlns="http://www.w3.org/2000/svg" {size} {style}>\n{body}\n</svg>\n')


def _bar(x: int, y: int, ratio: float, colour: str, layout: Layout) -> list[str]:
    width = min(ratio, layout.most) * layout.unit
    return [
        f'<rect x="{x}" y="{y}" width="{width:.1f}" height="{_BAR - 2}" fill="{colour}"/>',
        f'<text x="{x + width + 4:.1f}" y="{y + 9}" font-size="10">{ratio:.2f}</text>',
    ]
