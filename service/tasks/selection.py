"""Chooses a search's winner by the jobs' scores on each validation row, and says how sure that is. Pure: no session, no rows of
tables.

A winner must be better than the base alone by a paired test; where none is, the best one still is the task's adapter, and the
selection says that nothing beat the base.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel, Field

from contract.row_scores import Estimate, RowScores

Rule = Literal["one_standard_error", "lowest_loss"]


@dataclass(frozen=True)
class Candidate:
    """A job that kept an adapter. scores: on each validation row, if its worker reported them."""

    index: int
    rank: int
    val_loss: float
    scores: RowScores | None


class Interval(BaseModel):
    """A mean over the validation rows with its 95 % confidence interval over rows."""

    mean: float
    low: float
    high: float


class Selection(BaseModel):
    """How the winner was chosen, how good it is, and what to try next."""

    metric: Literal["val_loss", "val_accuracy"] = Field(
        description="By what jobs are compared: the loss; in a DPO search over beta, on which the loss depends, the share of "
        "pairs whose chosen answer has the higher implicit reward"
    )
    rule: Rule = Field(
        description="one_standard_error: the smallest rank among jobs within one standard error of the best, by paired "
        "differences. lowest_loss: where a worker of another version reported no losses by row"
    )
    rows: int | None = Field(description="Validation rows that it was judged on")
    value: Interval | None = Field(description="The winner's metric")
    gain: Interval | None = Field(
        description="By how much it is better than the base on the same rows; above 0 is better. The interval "
        "holds for all jobs that kept an adapter at once, since the winner is the best of them"
    )
    beats_base: bool | None = Field(description="Whether the whole interval of `gain` is above 0; null where it is unknown")
    tied: list[int] = Field(description="Indexes of the jobs within one standard error of the best, the winner among them")
    verdict: str = Field(description="The same in a sentence")
    suggestions: list[str] = Field(default=[], description="What to try next, in sentences")


def choose(candidates: Sequence[Candidate], base: RowScores | None) -> tuple[Candidate, Selection]:
    """The winner, and what is known of it. Of at least one candidate."""
    scores = [one.scores for one in candidates if one.scores is not None]
    paired = len(scores) == len(candidates) and all(one.comparable(scores[0]) for one in scores)
    if not paired:
        winner = min(candidates, key=lambda one: (one.val_loss, one.index))
        return winner, _selection(winner, base, len(candidates), [winner], "lowest_loss")
    best = min(candidates, key=lambda one: (_scored(one).mean, one.index))
    tied = [one for one in candidates if one is best or _within_one_error(one, best)]
    better = [one for one in tied if _beats(one, base, len(candidates))]
    winner = min(better or tied, key=lambda one: (one.rank, _scored(one).mean, one.index))
    return winner, _selection(winner, base, len(candidates), tied, "one_standard_error")


def _scored(one: Candidate) -> RowScores:
    assert one.scores is not None, "asked only where all candidates have scores"
    return one.scores


def _within_one_error(one: Candidate, best: Candidate) -> bool:
    difference = _scored(one).minus(_scored(best))
    return difference.mean <= difference.standard_error


def _gain(one: Candidate, base: RowScores | None) -> Estimate | None:
    if one.scores is None or base is None or not base.comparable(one.scores):
        return None
    return base.minus(one.scores)


def _beats(one: Candidate, base: RowScores | None, candidates: int) -> bool | None:
    """Whether it is surely better than the base, though it is the best of so many."""
    gain = _gain(one, base)
    return gain.interval_for(candidates)[0] > 0 if gain is not None else None


def _selection(winner: Candidate, base: RowScores | None, candidates: int, tied: Sequence[Candidate], rule: Rule) -> Selection:
    gain = _gain(winner, base)
    metric: Literal["val_loss", "val_accuracy"] = "val_loss"
    value = None
    if winner.scores is not None:
        estimate = winner.scores.estimate()
        value = _interval(estimate, 1)
        if winner.scores.metric == "error":
            metric, value = "val_accuracy", Interval(mean=1 - value.mean, low=1 - value.high, high=1 - value.low)
    made = Selection(
        metric=metric,
        rule=rule,
        rows=len(winner.scores.totals) if winner.scores is not None else None,
        value=value,
        gain=_interval(gain, candidates) if gain is not None else None,
        beats_base=_beats(winner, base, candidates),
        tied=sorted(one.index for one in tied),
        verdict="",
    )
    return made.model_copy(update={"verdict": _verdict(winner, made)})


def _interval(estimate: Estimate, comparisons: int) -> Interval:
    low, high = (_bounded(end, estimate.mean) for end in estimate.interval_for(comparisons))
    return Interval(mean=estimate.mean, low=low, high=high)


def _bounded(end: float, mean: float) -> float:
    """An end as JSON can hold it: one row has no spread, and its interval no ends."""
    return max(-1e300, min(1e300, end if end == end else mean))


def _verdict(winner: Candidate, made: Selection) -> str:
    what = "validation loss" if made.metric == "val_loss" else "validation accuracy"
    if made.value is None:
        return f"job {winner.index} won: the lowest validation loss, {winner.val_loss:.4f}"
    value = f"{what} {_words(made.value)}"
    if made.gain is None:
        return f"job {winner.index} won: {value}"
    if made.beats_base is False:
        return (
            f"nothing beat the base: the best, job {winner.index}, has {value}; its gain over the base is {_words(made.gain)} "
            f"by {made.rows} rows, which does not exclude 0"
        )
    others = len(made.tied) - 1
    ties = f"; {others} other{'s' * (others > 1)} within one standard error of the best" if others else ""
    return f"job {winner.index} won: {value}, better than the base by {_words(made.gain)}{ties}"


def _words(interval: Interval) -> str:
    if max(abs(interval.low), abs(interval.high)) >= 1e300:
        return f"{interval.mean:.4f} (one row has no interval)"
    return f"{interval.mean:.4f} ({interval.low:.4f} to {interval.high:.4f})"
