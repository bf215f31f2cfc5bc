"""Algorithm 1 against a literal, slow transcription of the paper's, and the boundary against a full ranking."""

import math
import random
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract.early_exit_policy import EarlyExitPolicy
from contract.states import ExitReason
from worker.policy.early_exit.alto_rules import Alto
from worker.policy.early_exit.asha_rules import Asha
from worker.policy.early_exit.guarded_alto import GuardedAlto
from worker.policy.early_exit.policy_interface import History, Standing, slope, smooth
from worker.policy.early_exit.policy_selection import TrainToEnd, policy_of

# Sixty-fourths are exact in binary, and so are their slopes over these windows but for one division at the end.
LOSSES = st.integers(1, 40).map(lambda n: n / 64)
PARAMETERS = st.builds(
    EarlyExitPolicy,
    window=st.integers(2, 5),
    patience_divergence=st.integers(1, 4),
    patience_overfitting=st.integers(1, 4),
    tau_slope=st.sampled_from([0.0, 0.001, 1 / 32, 1 / 16]),
    tau_gap=st.sampled_from([0.05, 0.1, 0.5, 3.0]),
    guard_patience=st.integers(0, 5),
)


def transcription(p: EarlyExitPolicy, trains: list[float], vals: list[float], guarded: bool) -> list[str | None]:
    """The paper's lines 1-14 with whole loss lists, once per evaluation, in exact arithmetic.

    guarded: what is found ends the job only where none of the last `guard_patience` losses is lower than all before.
    """

    def linreg_slope(ys: list[float]) -> Fraction:
        n, exact = len(ys), [Fraction(y) for y in ys]
        xs = range(n)
        top = n * sum(x * y for x, y in zip(xs, exact, strict=True)) - sum(xs) * sum(exact)
        return top / (n * sum(x * x for x in xs) - sum(xs) ** 2)

    answers: list[str | None] = []
    cnt_div = cnt_ovf = 0
    lowest_at = 1
    for t in range(1, len(vals) + 1):
        l_train, l_val = trains[:t], vals[:t]
        if l_val[-1] < vals[lowest_at - 1]:
            lowest_at = t
        believed = not guarded or t - lowest_at >= p.guard_patience
        if len(l_train) >= p.window and len(l_val) >= p.window:
            s_train, s_val = linreg_slope(l_train[-p.window :]), linreg_slope(l_val[-p.window :])
            cnt_div = cnt_div + 1 if s_train >= Fraction(p.tau_slope) and s_val >= Fraction(p.tau_slope) else 0
            if cnt_div >= p.patience_divergence:
                answers.append("diverging" if believed else None)
                continue
        g = (Fraction(l_val[-1]) - Fraction(l_train[-1])) / Fraction(l_train[-1])
        cnt_ovf = cnt_ovf + 1 if g > Fraction(p.tau_gap) else 0
        answers.append("overfitting" if cnt_ovf >= p.patience_overfitting and believed else None)
    return answers


@given(PARAMETERS, st.lists(st.tuples(LOSSES, LOSSES), min_size=1, max_size=30), st.booleans())
def test_equals_the_literal_transcription(p, points, guarded):
    trains, vals = [t for t, _ in points], [v for _, v in points]
    expected = transcription(p, trains, vals, guarded)
    history, policy = History(), (GuardedAlto if guarded else Alto)(p)
    for train, val, answer in zip(trains, vals, expected, strict=True):
        history, verdict = policy.on_evaluation(history, train, val)
        assert (verdict.reason.value if verdict else None) == answer
        if verdict:
            return


def observe_all(p: EarlyExitPolicy, points: list[tuple[float, float]], policy_class=Alto):
    history, policy = History(), policy_class(p)
    for number, (train, val) in enumerate(points):
        history, verdict = policy.on_evaluation(history, train, val)
        if verdict:
            return number, verdict
    return None


def test_divergence_needs_both_slopes_and_its_patience():
    p = EarlyExitPolicy(tau_gap=100)
    assert observe_all(p, [(1.0, 1.0), (1.1, 1.1), (1.0, 1.2), (1.1, 1.3), (1.2, 1.2), (1.3, 1.3), (1.4, 1.2)]) is None
    number, verdict = observe_all(p, [(1.0, 1.0), (1.1, 1.1), (1.2, 1.2)])
    assert number == 2  # the slopes at evaluations 1 and 2 are the two that patience asks for
    assert verdict.reason is ExitReason.DIVERGING
    assert verdict.evidence["train_slope"] == pytest.approx(0.1)
    assert verdict.evidence["val_window"] == [1.1, 1.2]
    assert verdict.evidence["consecutive"] == verdict.evidence["patience"] == 2


def test_overfitting_is_the_gap_ratio_twice_in_a_row():
    p = EarlyExitPolicy(tau_gap=0.125)
    assert observe_all(p, [(1.0, 1.2), (1.0, 1.05), (1.0, 1.2), (1.0, 1.125)]) is None  # the gap must exceed tau_gap
    number, verdict = observe_all(p, [(1.0, 1.05), (0.9, 1.05), (0.8, 1.05)])
    assert number == 2
    assert verdict.reason is ExitReason.OVERFITTING
    assert verdict.evidence["gap"] == pytest.approx(0.25 / 0.8)
    assert verdict.evidence["train_window"] == [0.9, 0.8]
    assert verdict.evidence["train_slope"] == pytest.approx(-0.1)
    assert verdict.evidence["val_slope"] == 0


def test_an_evaluation_counts_for_both_patterns():
    """The losses rise, which is no divergence yet; their gap is too wide for the second time."""
    p = EarlyExitPolicy(tau_gap=0.125, patience_divergence=3, patience_overfitting=2)
    number, verdict = observe_all(p, [(1.0, 1.2), (1.1, 1.4)])
    assert number == 1
    assert verdict.reason is ExitReason.OVERFITTING


def test_the_guard_lets_a_job_go_on_while_its_validation_loss_still_falls():
    wide = [(1.0, 2.0), (0.9, 1.9), (0.8, 1.8), (0.7, 1.85), (0.6, 1.7), (0.5, 1.7), (0.4, 1.71)]
    p = EarlyExitPolicy(guard_patience=2)
    assert observe_all(p, wide)[0] == 1
    number, verdict = observe_all(p, wide, GuardedAlto)
    assert number == 6  # one rise is forgiven by a new lowest; then two come in a row
    assert verdict.evidence["evaluations_since_best"] == 2
    assert verdict.evidence["best_val_loss"] == 1.7
    assert observe_all(p, wide[:6], GuardedAlto) is None


def test_the_guard_holds_for_divergence_too():
    rising = [(1.0 + n / 10, 1.0 + n / 10) for n in range(12)]
    p = EarlyExitPolicy(guard_patience=5)
    assert observe_all(p, rising)[0] == 2
    assert observe_all(p, rising, GuardedAlto)[0] == 5


@pytest.mark.parametrize("broken", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(
    "policy", [Alto(EarlyExitPolicy()), GuardedAlto(EarlyExitPolicy()), Asha(EarlyExitPolicy()), TrainToEnd()]
)
def test_a_validation_loss_that_is_not_finite_diverges_at_once(policy, broken):
    _, verdict = policy.on_evaluation(History(), 1.0, broken)
    assert verdict.reason is ExitReason.DIVERGING
    assert verdict.evidence["series"] == "val_loss"


@pytest.mark.parametrize("policy", [Alto(EarlyExitPolicy()), GuardedAlto(EarlyExitPolicy()), Asha(EarlyExitPolicy())])
def test_a_training_loss_that_is_not_finite_diverges_at_once(policy):
    _, verdict = policy.on_evaluation(History(), math.nan, 1.0)
    assert verdict.reason is ExitReason.DIVERGING
    assert verdict.evidence["series"] == "train_loss"


def test_no_policy_never_stops_a_finite_job():
    policy = policy_of(EarlyExitPolicy(policy="none"))
    history = History()
    for step in range(20):
        history, verdict = policy.on_evaluation(history, 1.0 + step, 9.0 + step)
        assert verdict is None


@given(st.lists(st.floats(-100, 100), min_size=2, max_size=12), st.floats(-5, 5))
def test_slope_of_a_line_is_its_slope_and_ignores_an_offset(noise, rise):
    line = [rise * place + 3 for place in range(len(noise))]
    assert slope(line) == pytest.approx(rise, abs=1e-9)
    assert slope([n + 7 for n in noise]) == pytest.approx(slope(noise), abs=1e-9)


def test_smoothing_starts_at_the_first_loss():
    ema = None
    for loss in (4.0, 2.0, 2.0):
        ema = smooth(ema, loss, 0.5)
    assert ema == 2.5


def standing(job: int, loss: float | None) -> Standing:
    return Standing(job, () if loss is None else (loss,))


def ranking(keep: float, losses: dict[int, float]) -> set[int]:
    """Lines 15-21: those who go on, when all who are alive at the boundary have arrived."""
    ranked = sorted(losses, key=lambda job: (losses[job], job))
    return set(ranked[: EarlyExitPolicy(keep_fraction=keep).kept_of(len(ranked))])


@given(
    st.floats(0.01, 1.0),
    st.lists(st.integers(0, 6), min_size=1, max_size=14),  # few values, so that ties are common
    st.sets(st.integers(0, 13)),
    st.randoms(use_true_random=False),
)
def test_early_verdicts_never_contradict_the_full_ranking(keep, values, leaving, order: random.Random):
    policy = Alto(EarlyExitPolicy(keep_fraction=keep))
    losses = {job: value / 4 for job, value in enumerate(values)}
    kept = ranking(keep, {job: loss for job, loss in losses.items() if job not in leaving})
    arrivals = list(losses)
    order.shuffle(arrivals)
    contenders: dict[int, float | None] = dict.fromkeys(losses)
    told: dict[int, bool] = {}
    for job in arrivals:
        if job in leaving:
            del contenders[job]  # diverged before it finished its warmup
        else:
            contenders[job] = losses[job]
        settled = policy.decide_ranks([standing(j, loss) for j, loss in contenders.items()])
        for decided, verdict in settled.items():
            assert told.setdefault(decided, verdict is None) == (verdict is None)
            assert (verdict is None) == (decided in kept)
        assert set(told) == set(settled)  # what was certain stays certain
    assert set(told) == set(contenders)


@given(st.floats(0.01, 1.0), st.lists(st.one_of(st.none(), st.integers(0, 5)), min_size=1, max_size=7))
def test_what_is_certain_is_told_at_once(keep, values):
    """The rule holds back nothing: an unsettled job could still end on either side of the cut."""
    losses = {job: None if value is None else float(value) for job, value in enumerate(values)}
    settled = Alto(EarlyExitPolicy(keep_fraction=keep)).decide_ranks([standing(j, loss) for j, loss in losses.items()])
    finished = {job: loss for job, loss in losses.items() if loss is not None}
    open_ = len(losses) - len(finished)
    for job in finished:
        fates = set()
        for worse in range(open_ + 1):
            for better in range(open_ + 1 - worse):  # the rest end before they finish their warmup
                arrived = {100 + n: 99.0 for n in range(worse)} | {-1 - n: -1.0 for n in range(better)}
                fates.add(job in ranking(keep, finished | arrived))
        assert (job in settled) == (len(fates) == 1)
        if job in settled:
            assert (settled[job] is None) == fates.pop()


def test_the_evidence_of_underperforming_names_the_cut():
    policy = Alto(EarlyExitPolicy(keep_fraction=0.25))
    standings = [standing(job, loss) for job, loss in enumerate([2.0, 1.0, 3.0, 1.5, 1.2])]
    settled = policy.decide_ranks(standings)
    assert [job for job, verdict in settled.items() if verdict is None] == [1, 4]  # ceil(0.25 x 5)
    evidence = settled[2].evidence
    assert (evidence["rank"], evidence["kept"], evidence["alive"], evidence["finished"]) == (5, 2, 5, 5)
    assert (evidence["val_loss"], evidence["last_kept_val_loss"]) == (3.0, 1.2)


@given(
    st.integers(2, 5),
    st.lists(st.lists(st.integers(0, 6), min_size=1, max_size=4), min_size=1, max_size=12),
    st.randoms(use_true_random=False),
)
def test_asha_equals_its_literal_transcription(eta, curves, order: random.Random):
    """Jobs come to their rungs one by one, in any order; each is ranked among those that came to that rung before it."""
    policy = Asha(EarlyExitPolicy(policy="asha", reduction_factor=eta))
    waiting = {job: list(curve) for job, curve in enumerate(curves)}
    came: dict[int, tuple[float, ...]] = {job: () for job in waiting}
    while waiting:
        job = order.choice(sorted(waiting))
        rung = len(came[job])
        came[job] = (*came[job], float(waiting[job].pop(0)))
        at_rung = sorted((losses[rung], other) for other, losses in came.items() if len(losses) > rung)
        top = at_rung[: max(1, len(at_rung) // eta)]
        verdict = policy.decide_ranks([Standing(j, losses) for j, losses in came.items()])[job]
        assert (verdict is None) == ((came[job][rung], job) in top)
        if verdict is not None:
            assert verdict.reason is ExitReason.UNDERPERFORMING
            assert (verdict.evidence["rung"], verdict.evidence["reached"]) == (rung, len(at_rung))
        if verdict is not None or not waiting[job]:
            del waiting[job]
