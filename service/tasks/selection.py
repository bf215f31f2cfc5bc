"""Chooses a search's winner by the jobs' scores on each validation row, or by a text metric's on each prompt, and says how sure
that is. Pure: no session, no rows of tables.

A winner must be better than the base alone by a paired test; where none is, the best one still is the task's adapter, and the
selection says that nothing beat the base.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, Field, ValidationError

from contract.row_scores import MeanEstimate, RowScores, unseen_share
from contract.task_spec import VAL_LOSS
from service.tasks.pairwise_wins import PairwiseWins

Rule = Literal["one_standard_error", "not_surely_worse", "lowest_loss", "highest_score"]
_OF_ROWS = {"loss": VAL_LOSS, "error": "val_accuracy"}  # metrics of validation rows
_NAMES = {VAL_LOSS: "validation loss", "val_accuracy": "validation accuracy"}
_EQUAL = 1e-9  # below it a standard error is rounding alone


@dataclass(frozen=True)
class Candidate:
    """A job that kept an adapter. scores: on each validation row, if its worker reported them, or, where the task selects by a
    text metric, 1 minus its result on each prompt, if its texts were scored."""

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

    metric: str = Field(
        description="By what jobs are compared: val_loss; val_accuracy in a DPO search over beta, on which the loss depends: "
        "the share of pairs whose chosen answer has the higher implicit reward; or the text metric that the task selects by"
    )
    rule: Rule = Field(
        description="one_standard_error: among jobs within one standard error of the best, by paired differences, the smallest "
        "rank; where none of these surely beats the base, among those that do. not_surely_worse: of a text metric, whose "
        "prompts are few: among jobs that a paired test at 95 % does not part from the best, the lowest validation loss. "
        "lowest_loss: where no adapter has losses by row, as of a worker of another version, or of different rows. "
        "highest_score: the highest mean of a text metric, where adapters answered different numbers of prompts"
    )
    rows: int | None = Field(description="Validation rows that it was judged on; prompts, of a text metric")
    value: Interval | None = Field(description="The winner's metric")
    gain: Interval | None = Field(
        description="By how much it is better than the base on the same rows; above 0 is better. The interval "
        "holds for all jobs that were compared (`compared`) at once, since the winner is the best of them"
    )
    compared: int | None = Field(
        default=None,
        description="How many jobs were compared: those that kept an adapter and could win, and those that were ranked out "
        "before; null where an earlier version chose",
    )
    beats_base: bool | None = Field(description="Whether the whole interval of `gain` is above 0; null where it is unknown")
    tied: list[int] = Field(description="Indexes of the jobs that the rule counts as equal to the best, the winner among them")
    unscored: list[int] = Field(
        default=[],
        description="Indexes of jobs that kept an adapter without scores, whose texts could not be scored or whose last "
        "evaluation found no memory, and that could not win beside those that have some",
    )
    verdict: str = Field(description="The same in a sentence")
    suggestions: list[str] = Field(default=[], description="What to try next, in sentences")
    pairwise: list[PairwiseWins] = Field(
        default=[], description="The winner's texts against the base's on the same prompts, by each text metric"
    )

    @property
    def of_texts(self) -> bool:
        """Whether jobs were compared by a text metric."""
        return self.metric not in _NAMES


def selection_of(task: Any) -> Selection | None:
    """The stored selection; None where there is none, or one that cannot be read. `task` is any row with a Task's columns."""
    try:
        return Selection.model_validate(task.selection) if task.selection is not None else None
    except ValidationError:
        return None


@dataclass(frozen=True)
class _Comparison:
    """What jobs were compared by. jobs: how many were, those that were ranked out before too; unscored: the indexes of those
    that kept an adapter and could not be."""

    metric: str | None
    base: RowScores | None
    jobs: int
    unscored: list[int]


def choose(
    candidates: Sequence[Candidate], base: RowScores | None, metric: str | None = None, ranked_out: int = 0
) -> tuple[Candidate, Selection]:
    """The winner, and what is known of it. Only those that have scores can win, if any has: the loss of one without them is of
    fewer rows. metric: the text metric that the scores are of; None: they are of validation rows. ranked_out: how many jobs
    were stopped for ranking behind these, which were ahead by the luck of the same rows, too. Of at least one candidate, of a
    text metric one with scores."""
    scored = [one for one in candidates if one.scores is not None]
    judged = scored or candidates
    unscored = sorted({one.index for one in candidates} - {one.index for one in judged})
    scores = [_scored(one) for one in scored]
    compared = _Comparison(metric, base, len(judged) + ranked_out, unscored)
    if not scores or not all(one.comparable(scores[0]) for one in scores):
        winner = min(judged, key=_order if metric is not None else _by_loss)
        return winner, _selection(compared, winner, [winner], "highest_score" if metric is not None else "lowest_loss")
    tied = _tied(judged, metric)
    better = [one for one in tied if _beats(one, base, compared.jobs)]
    lucky = ""
    if not better and (sure := [one for one in judged if _beats(one, base, compared.jobs)]):
        lucky = f"; job {min(tied, key=_order).index} has a better mean, whose gain over the base may be chance"
        better = tied = _tied(sure, metric)
    winner = min(better or tied, key=_by_loss if metric is not None else lambda one: (one.rank, *_order(one)))
    made = _selection(compared, winner, tied, "not_surely_worse" if metric is not None else "one_standard_error")
    return winner, made.model_copy(update={"verdict": made.verdict + lucky})


def _tied(candidates: Sequence[Candidate], metric: str | None) -> list[Candidate]:
    """The candidate with the best mean, and those that count as equal to it."""
    best = min(candidates, key=_order)
    if metric is not None:
        return [one for one in candidates if one is best or not _scored(one).surely_worse_than(_scored(best))]
    return [one for one in candidates if one is best or _scored(one).as_good_as(_scored(best))]


def _order(one: Candidate) -> tuple[float, float, int]:
    """By mean score; ties by the validation loss."""
    return _scored(one).mean, one.val_loss, one.index


def _by_loss(one: Candidate) -> tuple[float, int]:
    return one.val_loss, one.index


def _scored(one: Candidate) -> RowScores:
    assert one.scores is not None, "asked only where all candidates have scores"
    return one.scores


def _gain(one: Candidate, base: RowScores | None) -> MeanEstimate | None:
    if one.scores is None or base is None or not base.comparable(one.scores):
        return None
    return base.minus(one.scores)


def _gain_ends(gain: MeanEstimate, metric: str, comparisons: int) -> tuple[float, float]:
    """The 95 % interval of a gain. Where the gain is the same on every row, Student's t has no width; errors get that of a sign
    test instead: rows not seen, up to `unseen_share` of all, may lose what these gain, so six rows are the fewest that show a
    gain of one job. Without any gain, they may differ by 1 either way. Losses have no bounds and keep Student's t, and so does
    early exit, which compares jobs by `RowScores.minus` alone."""
    if metric != "error" or gain.standard_error > _EQUAL:
        return gain.interval_for(comparisons)
    share, mean = unseen_share(gain.rows, comparisons), gain.mean
    lost = share if abs(mean) <= _EQUAL else 2 * share * abs(mean)
    return (mean - lost if mean > -_EQUAL else mean), (mean + lost if mean < _EQUAL else mean)


def _mean_ends(scores: RowScores) -> tuple[float, float]:
    """The 95 % interval of a mean. Errors that are the same on every row get the exact one of n of n, not Student's."""
    made = scores.estimate()
    if scores.metric != "error" or made.standard_error > _EQUAL:
        return made.interval
    share = unseen_share(made.rows)
    return made.mean * (1 - share), made.mean + share * (1 - made.mean)


def _beats(one: Candidate, base: RowScores | None, comparisons: int) -> bool | None:
    """Whether it is surely better than the base, though it is the best of so many."""
    gain = _gain(one, base)
    return _gain_ends(gain, _scored(one).metric, comparisons)[0] > 0 if gain is not None else None


def _selection(compared: _Comparison, winner: Candidate, tied: Sequence[Candidate], rule: Rule) -> Selection:
    found, metric, value, gain = _gain(winner, compared.base), compared.metric or VAL_LOSS, None, None
    if found is not None:
        gain = _interval(found.mean, _gain_ends(found, _scored(winner).metric, compared.jobs))
    if winner.scores is not None:
        metric = compared.metric or _OF_ROWS[winner.scores.metric]
        value = _interval(winner.scores.mean, _mean_ends(winner.scores))
        if winner.scores.metric == "error":
            value = Interval(mean=1 - value.mean, low=max(0.0, 1 - value.high), high=min(1.0, 1 - value.low))
    made = Selection(
        metric=metric,
        rule=rule,
        rows=len(winner.scores.totals) if winner.scores is not None else None,
        value=value,
        gain=gain,
        compared=compared.jobs,
        beats_base=_beats(winner, compared.base, compared.jobs),
        tied=sorted(one.index for one in tied),
        unscored=compared.unscored,
        verdict="",
    )
    return made.model_copy(update={"verdict": _verdict(winner, made)})


def _interval(mean: float, ends: tuple[float, float]) -> Interval:
    low, high = (_bounded(end, mean) for end in ends)
    return Interval(mean=mean, low=low, high=high)


def _bounded(end: float, mean: float) -> float:
    """An end as JSON can hold it: one row has no spread, and its interval no ends."""
    return max(-1e300, min(1e300, end if end == end else mean))


def _verdict(winner: Candidate, made: Selection) -> str:
    left_out, name = len(made.unscored), _NAMES.get(made.metric, made.metric)
    lacking = f"; {left_out} other{'s' * (left_out > 1)} could not be scored by {name}" if left_out else ""
    if made.value is None:
        return f"job {winner.index} won: the lowest validation loss, {winner.val_loss:.4f}"
    value = f"{name} {_words(made.value)}"
    if made.gain is None:
        return f"job {winner.index} won: {value}{lacking}"
    if made.beats_base is False:
        surely = "so it is worse than the base" if made.gain.high < 0 else "which does not exclude 0"
        return (
            f"nothing beat the base: the best, job {winner.index}, has {value}; its gain over the base is {_words(made.gain)} "
            f"by {made.rows} {'prompts' if made.of_texts else 'rows'}, {surely}{lacking}"
        )
    others = len(made.tied) - 1
    near = "not surely worse than the best" if made.rule == "not_surely_worse" else "within one standard error of the best"
    ties = f"; {others} other{'s' * (others > 1)} {near}" if others else ""
    return f"job {winner.index} won: {value}, better than the base by {_words(made.gain)}{ties}{lacking}"


def _words(interval: Interval) -> str:
    if max(abs(interval.low), abs(interval.high)) >= 1e300:
        return f"{interval.mean:.4f} (one row has no interval)"
    return f"{interval.mean:.4f} ({interval.low:.4f} to {interval.high:.4f})"
