"""ALTO's Algorithm 1 (section 5), verbatim and with the guard of its text, and the selection at the warmup boundary.

Pure: losses and counts in, verdicts with their evidence out. Knows no tensors, no steps and no trainer.
"""

import math
from collections.abc import Iterable
from dataclasses import replace

from contract.states import ExitReason
from contract.task_spec import EarlyExitPolicy
from worker.policy.early_exit.policy_interface import Evidence, History, Standing, Verdict, not_finite, slope


class Alto:
    """ALTO's Algorithm 1: divergence and overfitting at each evaluation, underperformance at the warmup boundary."""

    def __init__(self, parameters: EarlyExitPolicy) -> None:
        self._p = parameters

    def observe(self, history: History, train_loss: float, val_loss: float) -> tuple[History, Verdict | None]:
        """Lines 1-14, run after an evaluation. `train_loss` is the smoothed training loss at that step."""
        broken = not_finite("train_loss", train_loss) or not_finite("val_loss", val_loss)
        if broken:
            return history, broken
        window = self._p.window
        lowest = history.best is None or val_loss < history.best
        seen = replace(
            history,
            train=(*history.train, train_loss)[-window:],
            val=(*history.val, val_loss)[-window:],
            best=val_loss if lowest else history.best,
            stale=0 if lowest else history.stale + 1,
        )
        seen, verdict = self._diverging(seen)
        if verdict is None:
            seen, verdict = self._overfitting(seen)
        return seen, verdict if self._believes(seen) else None

    def _watch(self, seen: History) -> Evidence:
        """The window of losses behind a verdict, with its slopes."""
        enough = len(seen.val) == self._p.window
        return {
            "train_window": list(seen.train),
            "val_window": list(seen.val),
            "train_slope": slope(seen.train) if enough else None,
            "val_slope": slope(seen.val) if enough else None,
            "best_val_loss": seen.best,
            "evaluations_since_best": seen.stale,
        }

    def _diverging(self, seen: History) -> tuple[History, Verdict | None]:
        p = self._p
        if len(seen.val) < p.window:
            return seen, None
        rising = slope(seen.train) >= p.tau_slope and slope(seen.val) >= p.tau_slope
        count = seen.diverging + 1 if rising else 0
        seen = replace(seen, diverging=count)
        if count < p.patience_divergence:
            return seen, None
        return seen, Verdict(
            ExitReason.DIVERGING,
            {
                "pattern": "training and validation loss both rise",
                "tau_slope": p.tau_slope,
                "consecutive": count,
                "patience": p.patience_divergence,
                **self._watch(seen),
            },
        )

    def _overfitting(self, seen: History) -> tuple[History, Verdict | None]:
        p = self._p
        train, val = seen.train[-1], seen.val[-1]
        gap = (val - train) / train if train else math.inf
        count = seen.overfitting + 1 if gap > p.tau_gap else 0
        seen = replace(seen, overfitting=count)
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
                **self._watch(seen),
            },
        )

    def _believes(self, seen: History) -> bool:
        """Whether a pattern detected now ends the job."""
        return True

    def settle(self, standings: Iterable[Standing]) -> dict[int, Verdict | None]:
        """Lines 15-21, decided as early as possible: the finished jobs whose rank no arrival can change any more.

        None is a job that continues. A job that is absent from the answer must wait for others. `standings` are all jobs alive
        at the boundary, settled ones included: a finished job counts even if it ended later, a job that ended before it
        finished its warmup does not.

        With f jobs better among the finished and u unfinished, a job's final rank lies in f..f+u. The cut k shrinks when an
        unfinished job ends, by at most one each. So a job is certainly out when f >= k now, and certainly in when f + u < k
        now.
        """
        alive = list(standings)
        cut = math.ceil(self._p.keep_fraction * len(alive))
        ranked = sorted((s.losses[0], s.job) for s in alive if s.losses)
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


class GuardedAlto(Alto):
    """As `Alto`, but a pattern ends a job only after `guard_patience` evaluations without a new lowest validation loss: "the
    validation loss turns upward" (5.1), which Algorithm 1 leaves out, and which noise on few held-out rows can feign."""

    def _believes(self, seen: History) -> bool:
        return seen.stale >= self._p.guard_patience
