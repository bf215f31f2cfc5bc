"""Other searches at the cost of ours, replayed over the same recorded curves: random subsets trained in full, ASHA, Hyperband,
and configurations that Optuna's TPE proposes one after another.

Each chooses its winner as ours is chosen, and pays for what it evaluates. Pure.
"""

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean

import optuna

from benchmarks.quality.early_exit_driver import EarlyExitDriver, Entrant, candidate_of
from benchmarks.quality.recorded_sweep import Sweep
from benchmarks.quality.replay import (
    ASHA_FACTORS,
    ASHA_WARMUPS,
    HYPERBAND_FACTOR,
    HYPERBAND_SHARES,
    Outcome,
    at_share,
    loss_at,
    replay,
    unseen,
)
from contract.task_spec import TaskSpec
from service.tasks.selection import choose

DRAWS = 60  # of random searches, whose mean counts
TPE_DRAWS, TPE_PROPOSALS = 20, 200
_DIVERGED = 1e6  # a loss that TPE takes as the worst
optuna.logging.set_verbosity(optuna.logging.WARNING)


@dataclass(frozen=True)
class Peer:
    """unseen: the mean loss of its winner on the test part. tokens: what it cost on average, evaluations included."""

    unseen: float
    tokens: float


def asha(spec: TaskSpec, sweep: Sweep, tokens: float) -> Peer:
    """ASHA with the first rung and factor whose cost is closest, under the interval of evaluations of `spec`."""
    tried = [replay(asha_of(spec, warmup, eta), sweep, spec)[0] for warmup in ASHA_WARMUPS for eta in ASHA_FACTORS]
    closest = min(tried, key=lambda one: abs(math.log(one.tokens / tokens)))
    return Peer(_loss(closest), closest.tokens)


def asha_of(spec: TaskSpec, warmup: float, eta: int) -> TaskSpec:
    changes = {"policy": "asha", "warmup_fraction": warmup, "reduction_factor": eta}
    return spec.model_copy(update={"early_exit": spec.early_exit.model_copy(update=changes)})


def _loss(one: Outcome) -> float:
    return one.test.mean if one.test is not None else math.inf


def random_subset(sweep: Sweep, full: EarlyExitDriver, tokens: float) -> Peer:
    """Random jobs trained in full, as many as the cost allows, at least one. full: of full training."""
    found = []
    for draw in range(DRAWS):
        spent, taken = 0.0, list[Entrant]()
        for entrant in _shuffled(full, draw):
            cost = _trained(sweep, entrant, entrant.step) + _evaluated(sweep, full, entrant)
            if taken and spent + cost > tokens:
                break
            spent += cost
            taken.append(entrant)
        found.append(Peer(_winners_loss(sweep, full, taken), spent))
    return _mean(found)


def tpe(sweep: Sweep, full: EarlyExitDriver, tokens: float) -> Peer:
    """What Optuna's TPE (Bergstra et al. 2011) proposes of the grid, each trained in full before the next proposal, as many as
    the cost allows, at least one. A configuration that it proposes again costs nothing again."""
    axes = ("learning_rate", "rank", "batch_size")
    place_of = {tuple(curve.config[axis] for axis in axes): place for place, curve in enumerate(sweep.curves)}
    space = {
        axis: optuna.distributions.CategoricalDistribution(sorted({key[at] for key in place_of}))
        for at, axis in enumerate(axes)
    }
    found = []
    for draw in range(TPE_DRAWS):
        study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=draw, multivariate=True))
        spent, taken = 0.0, dict[int, Entrant]()
        for _ in range(TPE_PROPOSALS):
            trial = study.ask(space)
            entrant = full.entrants[place_of[tuple(trial.params[axis] for axis in axes)]]
            if entrant.index not in taken:
                cost = _trained(sweep, entrant, entrant.step) + _evaluated(sweep, full, entrant)
                if taken and spent + cost > tokens:
                    break
                spent += cost
                taken[entrant.index] = entrant
            loss = _full_loss(sweep, full, entrant)
            study.tell(trial, loss if math.isfinite(loss) else _DIVERGED)
        found.append(Peer(_winners_loss(sweep, full, list(taken.values())), spent))
    return _mean(found)


def _full_loss(sweep: Sweep, full: EarlyExitDriver, entrant: Entrant) -> float:
    return candidate_of(sweep, entrant, full.parts.full).val_loss if entrant.best_totals is not None else math.inf


def hyperband(sweep: Sweep, full: EarlyExitDriver, tokens: float) -> Peer:
    """Brackets of successive halving (Li et al. 2018), the most aggressive first, over and over until the cost is spent."""
    found = []
    for draw in range(DRAWS):
        jobs, spent, finalists = _shuffled(full, draw), 0.0, list[Entrant]()
        for count, shares in _brackets():
            bracket, jobs = jobs[:count], jobs[count:]
            if not bracket:
                break
            cost, winners = _halved(sweep, full, bracket, shares)
            if finalists and spent + cost > tokens:
                break
            spent += cost
            finalists += winners
        found.append(Peer(_winners_loss(sweep, full, finalists), spent))
    return _mean(found)


def _brackets() -> Iterator[tuple[int, tuple[float, ...]]]:
    """(jobs, the shares of the steps at which they are cut) of each bracket."""
    most = len(HYPERBAND_SHARES)
    while True:
        for rounds in range(most, -1, -1):
            yield math.ceil((most + 1) / (rounds + 1) * HYPERBAND_FACTOR**rounds), HYPERBAND_SHARES[most - rounds :]


def _halved(
    sweep: Sweep, full: EarlyExitDriver, bracket: list[Entrant], shares: Sequence[float]
) -> tuple[float, list[Entrant]]:
    """What the bracket costs, and the jobs that it trains to their end."""
    left, cost = bracket, 0.0
    for share in shares:
        cost += len(left) * sweep.validation_tokens(full.parts.full)
        steps = {one.index: at_share(share, one.schedule.total_steps) for one in left}
        losses = {place: loss_at(sweep, place, step, full.parts.full) for place, step in steps.items()}
        ranked = sorted(left, key=lambda one: (losses[one.index], one.index))
        kept = ranked[: max(1, len(left) // HYPERBAND_FACTOR)]
        cost += sum(_trained(sweep, one, steps[one.index]) for one in ranked[len(kept) :])
        left = kept
    return cost + sum(_trained(sweep, one, one.step) + _evaluated(sweep, full, one) for one in left), left


def _shuffled(full: EarlyExitDriver, draw: int) -> list[Entrant]:
    entrants = list(full.entrants.values())
    return random.Random(draw).sample(entrants, len(entrants))


def _trained(sweep: Sweep, entrant: Entrant, step: int) -> float:
    return min(step, entrant.step) * entrant.batch_size * sweep.tokens_per_row


def _evaluated(sweep: Sweep, full: EarlyExitDriver, entrant: Entrant) -> float:
    """What a job's own evaluations cost in full training: of its trend, and once of all rows."""
    return entrant.schedule.evaluations * sweep.validation_tokens(full.parts.trend) + sweep.validation_tokens(full.parts.full)


def _winners_loss(sweep: Sweep, full: EarlyExitDriver, taken: list[Entrant]) -> float:
    finite = [entrant for entrant in taken if entrant.best_totals is not None]
    if not finite:
        return math.inf
    winner, _ = choose([candidate_of(sweep, entrant, full.parts.full) for entrant in finite], full.base)
    scores = unseen(sweep, full.entrants[winner.index])
    return scores.mean if scores is not None else math.inf


def _mean(found: list[Peer]) -> Peer:
    """The mean of the draws; one whose jobs all diverged has no winner, and leaves the base as it is: it is left out."""
    finite = [one for one in found if math.isfinite(one.unseen)]
    return Peer(fmean(one.unseen for one in finite) if finite else math.inf, fmean(one.tokens for one in found))
