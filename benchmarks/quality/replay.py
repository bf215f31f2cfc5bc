"""Replays policies over recorded curves: what each would have stopped, what that saves, and its cost in quality. Pure."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from benchmarks.quality.early_exit_driver import Referee
from benchmarks.quality.recorded_sweep import Curve, Sweep
from contract.search_space import JobConfig
from contract.task_spec import EVALUATIONS, Schedule, TaskSpec

SHARES = (0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2)  # of a job's steps, at which ranks are compared (ALTO figure 16)


@dataclass(frozen=True)
class Outcome:
    """saved: the share of all samples not trained on. saved_net: the same in tokens, evaluations counted as trained.

    ratios: the winner's best loss over full training's with the same evaluation interval, by the rows that the policy saw, and
    by all held-out rows. saved_by: the share of the saving by exit reason.
    """

    saved: float
    saved_net: float
    saved_by: dict[str, float]
    ratio: float
    measured_ratio: float
    winner: int
    tokens: float


def replay(spec: TaskSpec, sweep: Sweep, jobs: range, parts: int) -> Outcome:
    """The outcome of `spec`'s policy on the fully trained sweep, seeing the first `parts` parts of the held-out rows."""
    curves = {curve.job: curve for curve in sweep.curves if curve.job in jobs}
    referee = Referee(spec, sweep.train_rows, jobs)
    while active := referee.active:
        for entrant in active:
            entrant.step += 1
            if entrant.step == curves[entrant.index].broken_at:
                entrant.reason = "diverging"
            elif entrant.due:
                referee.evaluated(entrant.index, *curves[entrant.index].at(entrant.step, parts))
        referee.decide_ranks()
    best, best_measured = min(best_of(spec, sweep, curve, parts) for curve in curves.values())
    return outcome(sweep, referee, curves, parts, best, best_measured)


def best_of(spec: TaskSpec, sweep: Sweep, curve: Curve, parts: int) -> tuple[float, float]:
    """Curve.best of the fully trained job, over those recorded evaluations that it has without any policy."""
    plain = spec.model_copy(update={"early_exit": spec.early_exit.model_copy(update={"policy": "none"})})
    schedule = Schedule.of(plain, JobConfig.model_validate(curve.config), sweep.train_rows)
    return curve.best(parts, schedule.evaluates_at)


def outcome(sweep: Sweep, referee: Referee, curves: dict[int, Curve], parts: int, best: float, best_measured: float) -> Outcome:
    """Results of a sweep after the referee has seen it to its end. best, best_measured: full training's."""
    entrants = list(referee.entrants.values())
    full = {e.index: e.schedule.total_steps * e.batch_size for e in entrants}
    spent = {e.index: e.step * e.batch_size for e in entrants}
    saved_by = Counter[str]()
    for e in entrants:
        saved_by[e.reason or ""] += full[e.index] - spent[e.index]
    whole = sum(full.values())
    evaluations = sum(e.evaluations for e in entrants) * sum(sweep.part_tokens[:parts])
    tokens = sum(spent.values()) * sweep.tokens_per_row + evaluations
    leader = referee.leader()
    curve = curves[leader.index]
    measured = curve.loss(curve.steps.index(leader.best_step), len(curve.weights))
    return Outcome(
        saved=1 - sum(spent.values()) / whole,
        saved_net=1 - tokens / (whole * sweep.tokens_per_row),
        saved_by={reason: count / whole for reason, count in saved_by.items() if count},
        ratio=leader.best / best,
        measured_ratio=measured / best_measured,
        winner=leader.index,
        tokens=tokens,
    )


def watch_steps(total: int) -> set[int]:
    """Steps after which full training is evaluated, so that any policy can be replayed and ranks compared."""
    every = max(1, total // EVALUATIONS)
    rungs = {min(total, max(1, math.ceil(share * total))) for share in (*SHARES, *ASHA_WARMUPS)}
    for warmup in ASHA_WARMUPS:
        for eta in ASHA_FACTORS:
            at = max(1, math.ceil(warmup * total))
            while at < total:
                rungs.add(at)
                at *= eta
    return rungs | set(range(every, total + 1, every)) | {total}


ASHA_WARMUPS = (0.02, 0.05, 0.1)
ASHA_FACTORS = (2, 4)


def spearman(first: Sequence[float], second: Sequence[float]) -> float:
    """Rank correlation, ties at their mean rank; non-finite values count as the largest."""
    a, b = _ranks(first), _ranks(second)
    mean = (len(a) - 1) / 2
    top = sum((x - mean) * (y - mean) for x, y in zip(a, b, strict=True))
    below = math.sqrt(sum((x - mean) ** 2 for x in a) * sum((y - mean) ** 2 for y in b))
    return top / below if below else 0.0


def _ranks(values: Sequence[float]) -> list[float]:
    known = [value if math.isfinite(value) else math.inf for value in values]
    ordered = sorted(known)
    places: dict[float, list[int]] = {}
    for place, value in enumerate(ordered):
        places.setdefault(value, []).append(place)
    return [fmean(places[value]) for value in known]


@dataclass(frozen=True)
class Ranking:
    """How well losses at a share of the steps predict the final ranks (ALTO figure 16)."""

    share: float
    spearman: float
    coverage: float  # share of the true best quarter found in the best quarter at this point
    best_kept: bool  # whether the truly best job is in that quarter


def rankings(sweep: Sweep, jobs: range, parts: int) -> list[Ranking]:
    """Rankings at every share, by the first `parts` parts of the held-out rows."""
    curves = [curve for curve in sweep.curves if curve.job in jobs]
    final = [curve.best(parts)[0] for curve in curves]
    quarter = math.ceil(len(curves) / 4)
    best = sorted(range(len(curves)), key=lambda place: final[place])
    found = []
    for share in SHARES:
        early = [curve.at(min(curve.total_steps, max(1, math.ceil(share * curve.total_steps))), parts)[1] for curve in curves]
        early = [loss if math.isfinite(loss) else math.inf for loss in early]
        kept = set(sorted(range(len(curves)), key=lambda place: early[place])[:quarter])
        coverage = len(kept & set(best[:quarter])) / quarter
        found.append(Ranking(share, spearman(early, final), coverage, best[0] in kept))
    return found
