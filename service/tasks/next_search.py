"""What to try after a search: where its best configuration lies at the edge of what was tried, and what to look at where
nothing beat the base. Pure: configurations and numbers in, sentences out."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from contract.job_config import MAX_BATCH_SIZE, MAX_BETA, MAX_LEARNING_RATE, MAX_RANK, JobConfig
from contract.row_scores import MeanEstimate, RowScores

_EARLY = 0.25  # a best step before this part of the steps is that of a job that overfits
_NAMES = {"learning_rate": "learning rate", "rank": "rank", "batch_size": "batch size", "beta": "beta"}
_UPWARD = ("rank",)  # of these only the largest is an edge: the smallest is preferred among equals
_MOST = {"rank": MAX_RANK, "batch_size": MAX_BATCH_SIZE, "beta": MAX_BETA, "learning_rate": MAX_LEARNING_RATE}


@dataclass(frozen=True)
class Tried:
    """A job's configuration and its scores, by validation row or by prompt, lower is better; None where it has none, as a job
    that was stopped early. lowest: its lowest validation loss, of any step."""

    config: JobConfig
    scores: RowScores | None
    lowest: float = math.inf


def suggestions(
    tried: Sequence[Tried],
    best: JobConfig,
    best_step: int,
    total_steps: int | None,
    train_rows: int | None = None,
    drawn: bool = False,
) -> list[str]:
    """For a search of these jobs, the best of which had its lowest loss after `best_step` of its steps. train_rows: more than
    these fill no batch. drawn: the search drew their values, from what was given."""
    most = _MOST | {"batch_size": min(MAX_BATCH_SIZE, train_rows or MAX_BATCH_SIZE)}
    found = [said for name in _NAMES if (said := _beyond_edge(name, tried, best, most[name], drawn)) is not None]
    if total_steps is not None and best_step >= total_steps:
        found.append(
            "the best job's loss was lowest at its last step: more steps may lower it further (training.epochs, and "
            "training.max_steps where you gave it)"
        )
    elif total_steps is not None and best_step < _EARLY * total_steps:
        found.append(
            f"the best job's loss was lowest after {best_step} of {total_steps} steps, and it overfits or diverges from there "
            "on; try fewer epochs, lower learning rates, or more rows"
        )
    return found


def of_no_winner(
    tried: Sequence[Tried],
    best: JobConfig,
    validation_rows: int | None,
    learned: bool,
    of_texts: bool = False,
    drawn: bool = False,
) -> list[str]:
    """Where nothing beat the base. learned: whether any job was better than the base at all. of_texts: by a text metric, on so
    many prompts. drawn: as of `suggestions`."""
    found = ["check the data: does a row's prompt say what its completion must be?"]
    rates = sorted({one.config.learning_rate for one in tried})
    lower = _gain("learning_rate", rates[0], rates[1], tried) if len(rates) > 1 and best.learning_rate == rates[0] else None
    if lower is not None:
        found.append(
            f"try lower learning rates, such as {_said(rates[0] / 10)}: {_said(rates[0])} is the smallest {_known(drawn)}, "
            f"and better than {_said(rates[1])} by {_sure(lower)}"
        )
    if learned and validation_rows is not None and of_texts:
        found.append(
            f"ask more prompts: {validation_rows} are too few for a gain as small as the best one's; raise "
            "evaluation.max_prompts, or bring more rows"
        )
    elif learned and validation_rows is not None:
        found.append(
            f"bring more rows: {validation_rows} validation rows are too few for a gain as small as the best one's, or train "
            "for more steps"
        )
    return found


def _beyond_edge(name: str, tried: Sequence[Tried], best: JobConfig, most: float, drawn: bool) -> str | None:
    """To go beyond the edge that the best value lies at, up to `most`: only where the rows show that the way there led to lower
    scores."""
    values = sorted({value for one in tried if (value := getattr(one.config, name)) is not None})
    own = getattr(best, name)
    if len(values) < 2 or own not in (values[0], values[-1]) or (own == values[0] and name in _UPWARD):
        return None
    largest = own == values[-1]
    neighbour = values[-2] if largest else values[1]
    other = _beyond(name, own, neighbour, most)
    gain = _gain(name, own, neighbour, tried)
    if other is None or gain is None:
        return None
    edge, way = ("largest", "larger") if largest else ("smallest", "smaller")
    return (
        f"the best {_NAMES[name]}, {_said(own)}, is the {edge} {_known(drawn)}, and better than {_said(neighbour)} by "
        f"{_sure(gain)}: try {way} ones, such as {_said(other)}"
    )


def _known(drawn: bool) -> str:
    return "that was tried" if drawn else "you gave"


def _beyond(name: str, own: float, neighbour: float, most: float) -> float | None:
    """The next value, as far from the edge as its neighbour; None where the limits have none."""
    if not own or not neighbour or (own >= most and own > neighbour) or (name == "batch_size" and own == 1):
        return None
    other = min(most, own * own / neighbour)
    return max(1, round(other)) if name in ("rank", "batch_size") else other


def _gain(name: str, own: float, neighbour: float, tried: Sequence[Tried]) -> MeanEstimate | None:
    """By how much the best job with this value is better than the best with its neighbour, paired by rows; None where that is
    no more than one standard error, or unknown."""
    here, there = _lowest(name, own, tried), _lowest(name, neighbour, tried)
    if here is None or there is None or not here.comparable(there):
        return None
    gain = there.minus(here)
    return gain if gain.mean > gain.standard_error else None


def _lowest(name: str, value: float, tried: Sequence[Tried]) -> RowScores | None:
    """Of the best job with this value; None where none has scores, or one without had a lower loss by the time it stopped: the
    others tell little of the value then. Losses of one beta alone can be compared."""
    own = [one for one in tried if getattr(one.config, name) == value]
    scored = [(one.scores, one) for one in own if one.scores is not None]
    if not scored:
        return None
    scores, best = min(scored, key=lambda pair: pair[0].mean)
    stopped = [one.lowest for one in own if one.scores is None and one.config.beta == best.config.beta]
    return None if any(lowest < best.lowest for lowest in stopped) else scores


def _sure(gain: MeanEstimate) -> str:
    return f"{gain.mean:.4f} (standard error {gain.standard_error:.4f})"


def _said(value: float) -> str:
    return f"{value:g}"
