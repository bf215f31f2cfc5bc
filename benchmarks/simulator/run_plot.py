"""Plots a run as plain SVG: the timeline of every node above, the distribution of slowdowns below. Uses no library."""

from itertools import pairwise
from pathlib import Path
from xml.sax.saxutils import escape

from benchmarks.simulator.run_record import Outcome

_WIDTH, _ROW, _CURVE, _MARGIN = 1200, 6, 240, 50


def draw(outcome: Outcome, path: Path, title: str) -> None:
    """Write the plot. Rows are a node's GPUs; blocks are placements, coloured by tenant or task."""
    placed = [(node, start, end, ran) for ran in outcome.ran for node, start, end in ran.placed]
    last = max(end for _, _, end, _ in placed)
    gpus = outcome.setup.node_gpus
    height = outcome.setup.nodes * (gpus * _ROW + 2)
    shapes = []
    busy: dict[str, list[int]] = {}
    for node, start, end, ran in sorted(placed, key=lambda each: (each[1], each[2])):
        until = busy.setdefault(node, [0] * gpus)
        free = [at for at, moment in enumerate(until) if moment <= start][: ran.task.gpus]
        hue = hash_hue(ran.task.tenant or ran.task.id)
        for at in free:
            until[at] = end
            y = _MARGIN + int(node.rpartition("-")[2]) * (gpus * _ROW + 2) + at * _ROW
            x, width = _MARGIN + start / last * _WIDTH, max(0.5, (end - start) / last * _WIDTH)
            shapes.append(f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{_ROW}" fill="hsl({hue},60%,55%)"/>')
    curve = _curve(outcome, _MARGIN * 2 + height)
    body = "\n".join(
        [f'<text x="{_MARGIN}" y="30">{escape(title)}: {last / 3600:.1f} h, {len(outcome.ran)} tasks</text>', *shapes, *curve]
    )
    total = f'width="{_WIDTH + 2 * _MARGIN}" height="{height + _CURVE + 3 * _MARGIN}"'
    path.write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" {total} font-family="sans-serif" font-size="13">\n{body}\n</svg>\n'
    )


def hash_hue(name: str) -> int:
    """A stable hue for a name."""
    return sum(ord(letter) * (at * 37 + 11) for at, letter in enumerate(name)) % 360


def _curve(outcome: Outcome, top: int) -> list[str]:
    slowdowns = sorted((ran.ended - ran.task.at) / ran.task.true for ran in outcome.ran if ran.ended is not None)
    most = max(2.0, slowdowns[-1])
    points = [
        (_MARGIN + value / most * _WIDTH, top + _CURVE * (1 - at / len(slowdowns))) for at, value in enumerate(slowdowns, 1)
    ]
    lines = [
        f'<line x1="{x:.1f}" y1="{y:.1f}" x2="{u:.1f}" y2="{v:.1f}" stroke="#333"/>' for (x, y), (u, v) in pairwise(points)
    ]
    box = f'<rect x="{_MARGIN}" y="{top}" width="{_WIDTH}" height="{_CURVE}" fill="none" stroke="#999"/>'
    label = f'<text x="{_MARGIN}" y="{top - 6}">slowdown: share of tasks at or under it, 0 to {most:.1f}</text>'
    return [box, label, *lines]
