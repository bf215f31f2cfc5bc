"""Who is ahead of whom at a rung: by validation losses, by validation scores row by row, or by a text metric.

Pure: standings in, places out. Decides on nobody.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from contract.row_scores import RowScores
from worker.policy.early_exit.policy_interface import Evidence, Standing


@dataclass(frozen=True)
class Place:
    """A job at a rung. value: what ranks it, lower is better; inf where it has no scores by what ranks the others. val_loss:
    its validation loss there. scores: those behind the value, where they are known. validation: those of validation rows, where
    texts are behind the value."""

    job: int
    value: float
    val_loss: float
    scores: RowScores | None = None
    validation: RowScores | None = None


@dataclass(frozen=True)
class Measure:
    """What jobs were ranked by. metric: the text metric; None: validation losses or scores, since no job could be scored by the
    text metric `lacking`, or since the text metric `tied` does not tell the job from the best. by_error: the validation scores
    are shares of pairs ordered wrongly."""

    metric: str | None = None
    lacking: str | None = None
    tied: str | None = None
    by_error: bool = False

    @property
    def rows(self) -> str:
        """What its scores are of."""
        return "rows" if self.metric is None else "prompts"

    def told(self, value: float, whose: str = "") -> Evidence:
        """The value of a job as evidence: a loss, or an accuracy or a result of the metric, of which higher is better."""
        if self.metric is None and not self.by_error:
            return {f"{whose}val_loss": value}
        name = "val_accuracy" if self.metric is None else "score"
        return {f"{whose}{name}": 1 - value if math.isfinite(value) else None}

    def evidence(self, place: Place) -> Evidence:
        """What it was, and the job's own value."""
        if self.metric is not None:
            return {"metric": self.metric, **self.told(place.value), "val_loss": place.val_loss}
        why = {"unscored_by": self.lacking, "tied_by": self.tied}
        loss: Evidence = {"val_loss": place.val_loss}
        return loss | self.told(place.value) | {name: metric for name, metric in why.items() if metric is not None}


Order = Callable[[Sequence[Standing]], list[Place]]


def ranking(metric: str | None, standings: Sequence[Standing], by_validation: Order) -> tuple[Measure, list[Place]]:
    """The jobs that have reached the rung, the best first: by this text metric, or, where there is none or no job has scores by
    it, by validation."""
    if metric is not None and any(one.losses and one.texts is not None for one in standings):
        return Measure(metric), by_texts(standings)
    places = by_validation(standings)
    return Measure(lacking=metric, by_error=any(is_error(place.scores) for place in places)), places


def by_losses(standings: Sequence[Standing], rung: int = 0) -> list[Place]:
    """By the validation losses at this rung; ties go to the lower job index."""
    found = [Place(one.job, one.losses[rung], one.losses[rung]) for one in standings if len(one.losses) > rung]
    return sorted(found, key=_by_value)


def by_scores(standings: Sequence[Standing]) -> list[Place]:
    """By the mean scores of validation rows; ties by the loss, as the winner is chosen (service/tasks/selection.py). A job
    without scores counts by its loss; among scores of another metric it is the last."""
    by_error = any(is_error(one.scores) for one in standings)
    found = []
    for one in standings:
        if one.losses:
            lacking = math.inf if by_error else one.losses[0]
            value = one.scores.mean if one.scores is not None else lacking
            found.append(Place(one.job, value, one.losses[0], one.scores))
    return sorted(found, key=_by_value)


def by_texts(standings: Sequence[Standing]) -> list[Place]:
    """By a text metric, as the winner is chosen by one (service/tasks/selection.py): the jobs that are not surely worse than
    the best, by a paired test over the prompts, count as equal, and of these the one with the best validation goes first; then
    the same for those that are left. Jobs without scores come last, by validation.

    Not as `by_losses`: a later arrival may join jobs that were apart, or part jobs that were equal.
    """
    validated = {place.job: _by_value(place) for place in by_scores(standings)}
    found = [Place(one.job, _mean(one.texts), one.losses[0], one.texts, one.scores) for one in standings if one.losses]
    left = sorted(found, key=lambda place: (place.value, validated[place.job]))
    order: list[Place] = []
    while left:
        equal = [place for place in left if _equal(place, left[0])]
        order += sorted(equal, key=lambda place: validated[place.job])
        left = [place for place in left if place not in equal]
    return order


def is_error(scores: RowScores | None) -> bool:
    """Whether they are of a dpo search over beta."""
    return scores is not None and scores.metric == "error"


def _mean(scores: RowScores | None) -> float:
    return scores.mean if scores is not None else math.inf


def _equal(place: Place, best: Place) -> bool:
    if place.scores is None or best.scores is None:
        return place.scores is best.scores
    return place is best or (place.scores.comparable(best.scores) and not place.scores.surely_worse_than(best.scores))


def _by_value(place: Place) -> tuple[float, float, int]:
    return place.value, place.val_loss, place.job
