"""The curves as one SVG image, for browsers without scripts: validation losses, the best job's thick, exits marked. Pure."""

import math
from collections.abc import Sequence
from typing import Any
from xml.sax.saxutils import escape

from service.tasks.best_job import best_job
from service.tasks.job_resource import JobResource

_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP, _RIGHT = 900, 360, 56, 30, 10, 12
_GREY, _BEST, _EXIT = "#8a94a3", "#0072b2", "#d55e00"
_TEXT = 'font-family="system-ui,sans-serif" font-size="12" fill="#5b6470"'


def draw(jobs: Sequence[JobResource], pack: dict[str, Any], winner_job_id: str | None) -> str:
    """An SVG document of the packed curves."""
    curves = {
        index: [(s, v) for s, v in zip(steps, values, strict=True) if v is not None and v > 0]
        for index, steps, values in pack["val"]
    }
    points = [point for curve in curves.values() for point in curve]
    if not points:
        return _document(f'<text {_TEXT} x="50%" y="50%" text-anchor="middle">No validation loss yet</text>')
    last = max(step for step, _ in points) or 1
    low, high = math.log(min(value for _, value in points)), math.log(max(value for _, value in points))
    span = (high - low) or 1.0

    def x(step: float) -> float:
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * step / last

    def y(value: float) -> float:
        return _TOP + (_HEIGHT - _TOP - _BOTTOM) * (high - math.log(value)) / span

    best = best_job(jobs, winner_job_id)
    parts = [f'<path stroke="{_GREY}" fill="none" d="M{_LEFT} {_TOP}V{_HEIGHT - _BOTTOM}H{_WIDTH - _RIGHT}"/>']
    for at in range(5):
        value = math.exp(low + span * at / 4)
        parts.append(f'<text {_TEXT} x="{_LEFT - 6}" y="{y(value) + 4:.1f}" text-anchor="end">{value:.3g}</text>')
        parts.append(
            f'<text {_TEXT} x="{x(last * at / 4):.1f}" y="{_HEIGHT - 10}" text-anchor="middle">{last * at / 4:.0f}</text>'
        )
    for job in sorted(jobs, key=lambda job: best is not None and job.index == best.index):
        if curve := curves.get(job.index):
            colour, width = (_BEST, 2.5) if best is not None and job.index == best.index else (_GREY, 1)
            line = " ".join(f"{x(step):.1f},{y(value):.1f}" for step, value in curve)
            style = f'fill="none" stroke="{colour}" stroke-width="{width}"'
            parts.append(f'<polyline {style} points="{line}"><title>job {job.index}</title></polyline>')
            if job.exit is not None:
                px, py = x(curve[-1][0]), y(curve[-1][1])
                mark = f"M{px - 4:.1f} {py - 4:.1f}l8 8m0 -8l-8 8"
                parts.append(f'<path stroke="{_EXIT}" d="{mark}"><title>{escape(job.exit.reason.value)}</title></path>')
    return _document("".join(parts))


def _document(body: str) -> str:
    box = f'viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" height="{_HEIGHT}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {box} role="img">{body}</svg>'
