"""Loss curves as the plot reads them: training losses in buckets, validation losses point by point, five digits each.

A sweep of 120 jobs over 5,000 steps is about 200 kB so; the API's own answer, with least and greatest, is ten times that.
"""

import math
from collections.abc import Sequence
from typing import Any

from sqlalchemy.orm import Session

from service.tasks.curves.curve_reader import Curve, TooManyPoints, Window, coarse_curves, curves
from service.tenants.api_keys import Principal

_POINTS = 24_000  # of all training curves together, about
_FINEST, _COARSEST = 600, 60  # buckets of a curve


def curve_pack(
    session: Session, principal: Principal, task_id: str, jobs: int, only: Sequence[int], from_step: int
) -> dict[str, Any]:
    """The curves of the task's `jobs` jobs, or of those in `only`, from a step on.

    `train`: [job, first bucket, means] with buckets `width` steps wide; `val`: [job, steps, losses]. A loss that was not
    finite is null, as is a bucket without one.
    """
    resolution = max(_COARSEST, min(_FINEST, _POINTS // max(1, jobs)))
    train = coarse_curves(session, principal, task_id, Window(only, ["train_loss"], from_step), resolution).data
    window = Window(only, ["val_loss"], from_step)
    try:
        val = curves(session, principal, task_id, window).data
    except TooManyPoints:
        val = coarse_curves(session, principal, task_id, window, resolution).data
    width = math.gcd(*(step for curve in train for step in curve.steps)) or 1
    return {
        "width": width,
        "train": [_bucketed(curve, width) for curve in train],
        "val": [[curve.index, curve.steps, [_short(value) for value in curve.values]] for curve in val],
    }


def _bucketed(curve: Curve, width: int) -> list[Any]:
    first = curve.steps[0] // width
    means: list[float | None] = [None] * (curve.steps[-1] // width - first + 1)
    for step, value in zip(curve.steps, curve.values, strict=True):
        means[step // width - first] = _short(value)
    return [curve.index, first, means]


def _short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.5g}")
