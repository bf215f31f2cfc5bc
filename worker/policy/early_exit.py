"""When a job stops: ALTO's Algorithm 1 and the selection at the warmup boundary.

Pure: losses and counts in, verdicts with their evidence out. Knows neither tensors nor steps nor who trains.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from contract.spec import EarlyExitPolicy
from contract.states import ExitReason

Evidence = dict[str, float | int | str | list[float | None] | None]


@dataclass(frozen=True)
class Verdict:
    """A job ends, for this reason and on these numbers."""

    reason: ExitReason
    evidence: Evidence


@dataclass(frozen=True)
class History:
    """What Algorithm 1 remembers of a job from one evaluation to the next: the windows and the patience counters."""

    train: tuple[float, ...] = ()  # smoothed training losses sampled at evaluations, the last `window`
    val: tuple[float, ...] = ()  # validation losses, the last `window`
    diverging: int = 0
    overfitting: int = 0


@dataclass(frozen=True)
class Standing:
    """A job alive at the warmup boundary: its validation loss there, or None while its warmup still runs."""

    job: int
    val_loss: float | None


class Policy(Protocol):
    """What an executor asks: after each evaluation of a job, and whenever the standings at the boundary change."""

    def observe(self, history: History, train_loss: float, val_loss: float) -> tuple[History, Verdict | None]: ...

    def settle(self, standings: Iterable[Standing]) -> dict[int, Verdict | None]: ...


def policy_of(parameters: EarlyExitPolicy) -> Policy:
    """The policy that a task asked for."""
    return TrainToEnd() if parameters.policy == "none" else Alto(parameters)


def smooth(before: float | None, loss: float, alpha: float) -> float:
    """One step of the exponential moving average (ALTO 5.1); the first loss starts it."""
    return loss if before is None else alpha * loss + (1 - alpha) * before


def slope(values: Sequence[float]) -> float:
    """Least-squares slope of `values` over their indexes 0, 1, …; at least two values."""
    middle = (len(values) - 1) / 2
    rise = sum((place - middle) * value for place, value in enumerate(values))
    return rise / sum((place - middle) ** 2 for place in range(len(values)))


def not_finite(series: str, loss: float) -> Verdict | None:
    """A loss that is not a finite number is a divergence at once, under every policy: nothing finite follows it."""
    if math.isfinite(loss):
        return None
    return Verdict(ExitReason.DIVERGING, {"pattern": "loss is not finite", "series": series, "value": str(loss)})


class TrainToEnd:
    """No early exit: every job runs to its end, and there is no boundary to be ranked at."""

    def observe(self, history: History, train_loss: float, val_loss: float) -> tuple[History, Verdict | None]:
        return history, not_finite("val_loss", val_loss)

    def settle(self, standings: Iterable[Standing]) -> dict[int, Verdict | None]:
        return {standing.job: None for standing in standings if standing.val_loss is not None}


class Alto:
    """ALTO's Algorithm 1: divergence and overfitting at each evaluation, underperformance at the warmup boundary."""

    def __init__(self, parameters: EarlyExitPolicy) -> None:
        self._p = parameters

    def observe(self, history: History, train_loss: float, val_loss: float) -> tuple[History, Verdict | None]:
        """Lines 1-14, run after an evaluation. `train_loss` is the smoothed training loss at that step."""
        broken = not_finite("train_loss", train_loss) or not_finite("val_loss", val_loss)
        if broken:
            return history, broken
        seen = History(
            (*history.train, train_loss)[-self._p.window :],
            (*history.val, val_loss)[-self._p.window :],
            history.diverging,
            history.overfitting,
        )
        seen, verdict = self._diverging(seen)
        return (seen, verdict) if verdict else self._overfitting(seen)

    def _diverging(self, seen: History) -> tuple[History, Verdict | None]:
        p = self._p
        if len(seen.val) < p.window:
            return seen, None
        train_slope, val_slope = slope(seen.train), slope(seen.val)
        rising = train_slope >= p.tau_slope and val_slope >= p.tau_slope
        count = seen.diverging + 1 if rising else 0
        seen = History(seen.train, seen.val, count, seen.overfitting)
        if count < p.patience_divergence:
            return seen, None
        return seen, Verdict(
            ExitReason.DIVERGING,
            {
                "pattern": "training and validation loss both rise",
                "train_slope": train_slope,
                "val_slope": val_slope,
                "tau_slope": p.tau_slope,
                "consecutive": count,
                "patience": p.patience_divergence,
                "train_window": list(seen.train),
                "val_window": list(seen.val),
            },
        )

    def _overfitting(self, seen: History) -> tuple[History, Verdict | None]:
        p = self._p
        train, val = seen.train[-1], seen.val[-1]
        gap = (val - train) / train if train else math.inf
        count = seen.overfitting + 1 if gap > p.tau_gap else 0
        seen = History(seen.train, seen.val, seen.diverging, count)
        if count < p.patience_overfitting:
            return seen, None
        return seen, Verdict(
            ExitReason.OVERFITTING,
            {
                "pattern": "validation loss stays above training loss",
                "gap": gap if math.isfinite(gap) else None,
                "tau_gap": p.tau_gap,
                "consecutive": count,
                "patience": p.patience_overfitting,
                "train_window": list(seen.train),
                "val_window": list(seen.val),
            },
        )

    def settle(self, standings: Iterable[Standing]) -> dict[int, Verdict | None]:
        """Lines 15-21, as early as they are certain: the finished jobs whose place no arrival can change any more.

        None is a job that goes on. A job that is absent from the answer must wait for others. `standings` are all jobs alive
        at the boundary, those already settled among them: a finished job counts whatever became of it later, a job that
        ended before it finished its warmup does not.

        With f jobs better among the finished and u unfinished, a job's final rank lies in f..f+u. The cut k shrinks when an
        unfinished job ends, by at most one each, so: out is certain when f >= k now, and in is certain when f + u < k now.
        """
        alive = list(standings)
        cut = math.ceil(self._p.keep_fraction * len(alive))
        ranked = sorted((s.val_loss, s.job) for s in alive if s.val_loss is not None)
        unfinished = len(alive) - len(ranked)
        settled: dict[int, Verdict | None] = {}
        for better, (loss, job) in enumerate(ranked):
            if better + unfinished < cut:
                settled[job] = None
            elif better >= cut:
                settled[job] = self._underperforming(loss, ranked[cut - 1][0], better, cut, len(ranked), len(alive))
        return settled

    def _underperforming(self, loss: float, last_kept: float, better: int, cut: int, finished: int, alive: int) -> Verdict:
        return Verdict(
            ExitReason.UNDERPERFORMING,
            {
                "pattern": "ranks below the cut at the warmup boundary",
                "val_loss": loss,
                "last_kept_val_loss": last_kept,
                "rank": better + 1,
                "kept": cut,
                "finished": finished,
                "alive": alive,
                "keep_fraction": self._p.keep_fraction,
            },
        )
