"""Replays policies over recorded curves: what each would have stopped, what that saves, and which adapter it would have chosen.
Pure."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from benchmarks.quality.early_exit_driver import EarlyExitDriver, Entrant, schedule_of
from benchmarks.quality.recorded_sweep import Sweep
from contract.row_scores import RowScores
from contract.task_spec import TaskSpec
from service.tasks.selection import Selection

SHARES = (0.01, 0.02, 0.05, 0.1, 0.2)  # of a job's steps, at which ranks are compared (ALTO figure 16)
ASHA_WARMUPS = (0.02, 0.05, 0.1)
ASHA_FACTORS = (2, 4)
HYPERBAND_FACTOR = 4
HYPERBAND_SHARES = (1 / 16, 1 / 4)


@dataclass(frozen=True)
class Outcome:
    """What a policy made of a sweep.

    saved: the share of all samples not trained on; saved_by: the same by exit reason. saved_net: in tokens, evaluations counted
    as trained; evaluation_share: of the tokens of full training. best_loss: the winner's, on the rows that chose it. test: its
    scores on the rows that neither training nor selection saw. kept: the share of the jobs that passed the cut.
    """

    saved: float
    saved_net: float
    saved_by: dict[str, float]
    evaluation_share: float
    tokens: float
    winner: int
    winner_step: int
    best_loss: float
    kept: float
    selection: Selection
    test: RowScores | None


def replay(spec: TaskSpec, sweep: Sweep, like: TaskSpec | None = None) -> tuple[Outcome, EarlyExitDriver]:
    """The outcome of `spec`'s policy on the fully trained sweep. like: as of EarlyExitDriver."""
    driver = driver_of(spec, sweep, like)
    return outcome(sweep, driver), driver


def replay_live(live: Sweep, spec: TaskSpec) -> Outcome:
    """The outcome of a live sweep, whose driver is shown again what it saw then. Raises ValueError where it decides otherwise
    than it did."""
    driver = driver_of(spec, live)
    if {entrant.index: entrant.reason for entrant in driver.entrants.values()} != live.reasons:
        raise ValueError(f"{live.pair}: the policy decides otherwise than it did live; its record is of another version")
    return outcome(live, driver)


def driver_of(spec: TaskSpec, sweep: Sweep, like: TaskSpec | None = None) -> EarlyExitDriver:
    """The driver of `spec`'s policy after the last step of the recorded sweep. like: as of EarlyExitDriver."""
    curves = {curve.job: curve for curve in sweep.curves}
    driver = EarlyExitDriver(spec, sweep, like)
    while active := driver.active:
        for entrant in active:
            entrant.step += 1
            if entrant.step == curves[entrant.index].diverged_at:
                driver.end(entrant, "diverging")
            elif entrant.due:
                driver.evaluated(entrant.index, *curves[entrant.index].at(entrant.step))
        driver.decide_ranks()
    for entrant in driver.entrants.values():
        curve = curves[entrant.index]
        # full training has the mean of its own best weights, which may be those of other steps; none where a job ended earlier
        if entrant.ends_in_a_mean and curve.mean is not None and entrant.step >= curve.last_step:
            driver.averaged(entrant.index, curve.mean)
    return driver


def outcome(sweep: Sweep, driver: EarlyExitDriver) -> Outcome:
    """Results of a sweep after the driver has seen it to its end."""
    entrants = list(driver.entrants.values())
    full = {e.index: e.schedule.total_steps * e.batch_size for e in entrants}
    spent = {e.index: e.step * e.batch_size for e in entrants}
    saved_by = Counter[str]()
    for e in entrants:
        saved_by[e.reason or ""] += full[e.index] - spent[e.index]
    whole = sum(full.values())
    tokens = sum(spent.values()) * sweep.tokens_per_row + driver.evaluated_tokens
    winner, selection = driver.chosen()
    return Outcome(
        saved=1 - sum(spent.values()) / whole,
        saved_net=1 - tokens / (whole * sweep.tokens_per_row),
        saved_by={reason: count / whole for reason, count in saved_by.items() if count},
        evaluation_share=driver.evaluated_tokens / (whole * sweep.tokens_per_row),
        tokens=tokens,
        winner=winner.index,
        winner_step=winner.best_step,
        best_loss=full_loss(sweep, winner),
        kept=fmean(e.reason != "underperforming" for e in entrants),
        selection=selection,
        test=unseen(sweep, winner),
    )


def used(one: Outcome, base: RowScores) -> RowScores:
    """What the search's model scores on the test part: its winner, or the base where the search says, and rightly, that nothing
    beat it. A peer says nothing, and is taken to know as much; a wrong "none" is counted by itself."""
    assert one.test is not None, "a winner has finite losses"
    return base if one.selection.beats_base is False and base.mean < one.test.mean else one.test


def base_unseen(sweep: Sweep) -> RowScores:
    """What the base alone scores on the test part."""
    base = sweep.test(sweep.base)
    assert base is not None, "the base's losses are finite"
    return base


def best_unseen(sweep: Sweep, full: EarlyExitDriver) -> RowScores:
    """On the test part: the best of full training's finalists, or the base alone where none is better."""
    finalists = (unseen(sweep, entrant) for entrant in full.entrants.values())
    known = (scores for scores in finalists if scores is not None)
    return min((base_unseen(sweep), *known), key=lambda scores: scores.mean)


def redrawn_regrets(ours: TaskSpec, whole: TaskSpec, sweep: Sweep, draws: int) -> list[tuple[float, float]]:
    """Regrets of `ours` and of full training's own choice (`whole`), by replay, for so many draws of which rows validate and
    which nobody sees."""
    found = []
    for seed in range(draws):
        drawn = sweep.redrawn(seed)
        base = base_unseen(drawn)
        all_trained, full = replay(whole, drawn)
        best = best_unseen(drawn, full).mean
        found.append((used(replay(ours, drawn)[0], base).mean / best, used(all_trained, base).mean / best))
    return found


def unseen(sweep: Sweep, entrant: Entrant) -> RowScores | None:
    """What the entrant's best adapter scores on the test part."""
    return sweep.test(entrant.best_totals) if entrant.best_totals is not None else None


def plainly_unseen(sweep: Sweep, entrant: Entrant) -> RowScores | None:
    """What its weights at its lowest loss score on the test part, also where its adapter is a mean."""
    totals = entrant.plain_totals if entrant.plain_totals is not None else entrant.best_totals
    return sweep.test(totals) if totals is not None else None


def full_loss(sweep: Sweep, entrant: Entrant) -> float:
    """The loss of the entrant's best adapter on all validation rows, whatever part of them its policy read: so that policies
    compare by the same rows."""
    scores = sweep.validation(entrant.best_totals, sweep.validation_rows) if entrant.best_totals is not None else None
    return scores.mean if scores is not None else math.inf


def watch_steps(specs: Sequence[tuple[TaskSpec, TaskSpec | None]], job: int, train_rows: int) -> set[int]:
    """Steps after which a job of full training is evaluated, so that any of these policies can be replayed, and its peers."""
    found: set[int] = set()
    for spec, like in specs:
        schedule = schedule_of(spec, job, train_rows, like)
        total, every = schedule.total_steps, schedule.eval_every
        found |= {*range(every, total + 1, every), total, *schedule.rungs}
    return found | {at_share(share, total) for share in (*SHARES, *HYPERBAND_SHARES)}


def at_share(share: float, total: int) -> int:
    return min(total, max(1, math.ceil(share * total)))


def spearman(first: Sequence[float], second: Sequence[float]) -> float:
    """Rank correlation, ties at their mean rank; non-finite values count as the largest."""
    a, b = _ranks(first), _ranks(second)
    mean = (len(a) - 1) / 2
    top = sum((x - mean) * (y - mean) for x, y in zip(a, b, strict=True))
    below = math.sqrt(sum((x - mean) ** 2 for x in a) * sum((y - mean) ** 2 for y in b))
    return top / below if below else 0.0


def _ranks(values: Sequence[float]) -> list[float]:
    known = [value if math.isfinite(value) else math.inf for value in values]
    places: dict[float, list[int]] = {}
    for place, value in enumerate(sorted(known)):
        places.setdefault(value, []).append(place)
    return [fmean(places[value]) for value in known]


@dataclass(frozen=True)
class Ranking:
    """How well losses at a share of the steps predict the final ranks (ALTO figure 16)."""

    share: float
    spearman: float
    best_kept: bool  # whether the truly best job is in the best quarter at this point


def rankings(sweep: Sweep, full: EarlyExitDriver) -> list[Ranking]:
    """Rankings at every share, on all validation rows. full: of full training."""
    entrants = list(full.entrants.values())
    final = [full_loss(sweep, entrant) for entrant in entrants]
    quarter, best = math.ceil(len(final) / 4), min(range(len(final)), key=lambda place: final[place])
    found = []
    for share in SHARES:
        steps = [at_share(share, entrant.schedule.total_steps) for entrant in entrants]
        early = [loss_at(sweep, place, step, sweep.validation_rows) for place, step in enumerate(steps)]
        kept = sorted(range(len(early)), key=lambda place: early[place])[:quarter]
        found.append(Ranking(share, spearman(early, final), best in kept))
    return found


def loss_at(sweep: Sweep, place: int, step: int, rows: int) -> float:
    """A fully trained job's loss on the first so many validation rows after this step; infinite once it diverged."""
    curve = sweep.curves[place]
    if curve.diverged_at is not None and step >= curve.diverged_at:
        return math.inf
    scores = sweep.validation(curve.at(step)[1], rows)
    return scores.mean if scores is not None else math.inf
