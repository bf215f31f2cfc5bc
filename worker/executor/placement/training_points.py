"""What the steps and evaluations of one job say in its task's curves. Reports nothing itself."""

import math
from collections.abc import Sequence

from contract.messages.report_messages import Points, Series
from worker.executor.reporter import points
from worker.policy.job_record import JobKey
from worker.replicas.packed_step import Stepped
from worker.replicas.validation_pass import ValidationResult


def training_points(key: JobKey, first: int, taken: Sequence[Stepped]) -> list[Points]:
    """The points of the job's steps, all of which name it, of the number `first` and on. A loss that is not finite has no
    accuracy and no margin."""
    losses = [stepped.losses[key] for stepped in taken]
    finite = [(first + place, taken[place]) for place, loss in enumerate(losses) if math.isfinite(loss)]
    numbers, preferences = [number for number, _ in finite], [stepped.preferences.get(key) for _, stepped in finite]
    accuracies = [
        stepped.accuracies[key] if preference is None else preference.accuracy
        for (_, stepped), preference in zip(finite, preferences, strict=True)
    ]
    margins = [preference.margin for preference in preferences if preference is not None]  # of each step, or of none
    return [
        *points(key.job, "train_loss", range(first, first + len(losses)), losses),
        *points(key.job, "train_accuracy", numbers, accuracies),
        *points(key.job, "train_margin", numbers if margins else [], margins),
    ]


def validation_values(result: ValidationResult) -> dict[Series, float]:
    """What an evaluation adds to each series. A loss that is not finite has no accuracy and no margin."""
    values: dict[Series, float] = {"val_loss": result.loss}
    if math.isfinite(result.loss):
        if result.accuracy is not None:
            values["val_accuracy"] = result.accuracy
        if result.margin is not None:
            values["val_margin"] = result.margin
    return values
