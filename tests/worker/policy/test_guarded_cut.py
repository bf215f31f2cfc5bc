"""The paired cut: its floor and ceiling, its test, its order of arrival, and the end of a search that learned nothing."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract.early_exit_policy import EarlyExitPolicy
from contract.row_scores import RowScores
from contract.states import ExitReason
from contract.wording.exit_sentences import exit_sentence
from worker.policy.early_exit.guarded_alto import GuardedAlto
from worker.policy.early_exit.policy_interface import Standing

ROWS = 40


def scores(mean: float, seed: int = 0, noise: float = 0.0) -> RowScores:
    """Rows that are as hard for every job, with a mean of their own."""
    hard, own = random.Random(1), random.Random(seed)
    return RowScores(totals=[hard.uniform(0, 5) + mean + own.gauss(0, noise) for _ in range(ROWS)])


def standings(means: list[float], noise: float = 0.0) -> list[Standing]:
    made = [scores(mean, seed, noise) for seed, mean in enumerate(means)]
    return [Standing(job, (one.mean,), one) for job, one in enumerate(made)]


def kept(settled: dict[int, object]) -> set[int]:
    return {job for job, verdict in settled.items() if verdict is None}


POLICY = GuardedAlto(EarlyExitPolicy(keep_fraction=0.25))


def test_at_least_half_a_quarter_go_on_though_all_are_surely_worse():
    assert kept(POLICY.decide_ranks(standings([float(n) for n in range(16)], 0.01))) == {0, 1}


def test_at_most_one_and_a_half_quarters_go_on_though_none_is_surely_worse():
    settled = POLICY.decide_ranks(standings([0.0001 * n for n in range(16)], 1.0))
    assert len(kept(settled)) == 6
    assert all(verdict.reason is ExitReason.UNDERPERFORMING for verdict in settled.values() if verdict is not None)


def test_between_them_the_paired_test_decides():
    """Three of 16 are the same but for noise, the others surely worse."""
    settled = POLICY.decide_ranks(standings([1.0, 0.0, 0.01, 0.02] + [1.0] * 12, 0.1))
    assert kept(settled) == {1, 2, 3}
    evidence = next(
        verdict.evidence for verdict in settled.values() if verdict is not None and "difference" in verdict.evidence
    )
    assert 0 < evidence["difference_low"] < evidence["difference"] < evidence["difference_high"]
    assert evidence["rows"] == ROWS


def test_without_scores_the_rank_decides_as_altos():
    settled = POLICY.decide_ranks([Standing(job, (float(job),)) for job in range(16)])
    assert kept(settled) == {0, 1, 2, 3}


def test_a_search_that_only_harms_ends_and_keeps_its_best():
    base = scores(0.0, 99, 0.01)
    settled = POLICY.decide_ranks(standings([2.0, 1.0, 3.0], 0.01), base)
    assert [settled[job].keeps_adapter_though_ranked_out for job in range(3)] == [False, True, False]
    for job, verdict in settled.items():
        assert verdict.reason is ExitReason.UNDERPERFORMING
        assert verdict.evidence["base_val_loss"] == pytest.approx(base.mean)
        assert verdict.evidence["val_loss"] == pytest.approx(base.mean + [2.0, 1.0, 3.0][job], abs=0.02)


def test_as_many_as_may_go_on_where_no_job_is_surely_better_than_the_base():
    """One job of 16 has not learned, the others are surely worse than it."""
    found = standings([float(n) for n in range(16)], 0.01)
    assert kept(POLICY.decide_ranks(found, scores(0.0, 99, 0.01))) == {0, 1, 2, 3, 4, 5}
    assert kept(POLICY.decide_ranks(found, scores(0.5, 99, 0.01))) == {0, 1}
    unscored = [Standing(job, (float(job),)) for job in range(16)]
    assert kept(POLICY.decide_ranks(unscored, scores(0.0, 99, 0.01))) == {0, 1, 2, 3}


def ordered(accuracies: list[float], losses: list[float]) -> list[Standing]:
    """Of a dpo search over beta: of each job the pairs that it orders rightly."""
    wrong = [RowScores(metric="error", totals=[float(n >= ROWS * share) for n in range(ROWS)]) for share in accuracies]
    return [Standing(job, (loss,), one) for job, (loss, one) in enumerate(zip(losses, wrong, strict=True))]


def test_of_jobs_that_order_as_many_pairs_the_one_with_the_lowest_loss_goes_first():
    settled = POLICY.decide_ranks(ordered([1.0] * 4, [0.57, 0.38, 0.06, 0.0004]))
    assert kept(settled) == {2, 3}
    evidence = settled[0].evidence
    assert (evidence["val_loss"], evidence["val_accuracy"], evidence["last_kept_val_accuracy"]) == (0.57, 1.0, 1.0)
    assert exit_sentence(ExitReason.UNDERPERFORMING, evidence) == (
        "4th of 4 after warmup by validation accuracy, at most 2 go on"
    )


def test_a_job_of_a_search_over_beta_without_scores_is_last():
    """Its loss says nothing: the others are told by shares of pairs."""
    settled = POLICY.decide_ranks([*ordered([0.9, 0.8, 0.1], [0.5, 0.6, 0.7]), Standing(3, (0.0,))])
    assert kept(settled) == {0}
    assert settled[3].evidence["rank"] == 4
    assert exit_sentence(ExitReason.UNDERPERFORMING, settled[3].evidence) == (
        "4th of 4 after warmup by validation accuracy, at most 2 go on"
    )


def test_a_search_over_beta_is_told_by_its_accuracies():
    settled = POLICY.decide_ranks(ordered([1.0, 0.9, 0.1, 0.1], [0.1, 0.2, 0.3, 0.4]))
    said = exit_sentence(ExitReason.UNDERPERFORMING, settled[2].evidence)
    assert said == "3rd of 4 after warmup by validation accuracy, at most 2 go on"
    harmed = POLICY.decide_ranks(ordered([0.1, 0.05], [0.9, 0.8]), RowScores(metric="error", totals=[0.5] * ROWS))
    said = exit_sentence(ExitReason.UNDERPERFORMING, harmed[0].evidence)
    assert said == "no job beats the base after warmup by validation accuracy: 0.1000, the base alone 0.5000"


def test_a_search_goes_on_where_one_job_may_have_learned():
    settled = POLICY.decide_ranks(standings([2.0, 0.0, 3.0], 0.01), scores(0.0, 99, 0.01))
    assert kept(settled) == {0, 1}
    assert kept(POLICY.decide_ranks(standings([2.0, 1.0, 3.0], 0.01))) == {1}  # the base is unknown


def test_none_goes_on_before_it_is_known_whether_any_has_learned():
    """The first of 8 to arrive is surely the best of those here, but worse than the base."""
    early = [*standings([1.0], 0.01), *(Standing(job, ()) for job in range(1, 8))]
    assert POLICY.decide_ranks(early, scores(0.0, 99, 0.01)) == {}


@given(
    st.floats(0.05, 1.0),
    st.lists(st.integers(0, 6), min_size=1, max_size=12),
    st.sets(st.integers(0, 11)),
    st.sampled_from([0.0, 0.3, 3.0]),
    st.sampled_from([None, -9.0, 0.5]),
    st.randoms(use_true_random=False),
)
def test_verdicts_do_not_depend_on_the_order_of_arrival(keep, values, leaving, noise, base, order: random.Random):
    policy = GuardedAlto(EarlyExitPolicy(keep_fraction=keep))
    alone = scores(base, 99, 0.01) if base is not None else None
    whole = standings([value / 4 for value in values], noise)
    final = policy.decide_ranks([one for one in whole if one.job not in leaving], alone)
    arrivals = list(range(len(values)))
    order.shuffle(arrivals)
    contenders = {one.job: Standing(one.job, ()) for one in whole}
    told: dict[int, bool] = {}
    for job in arrivals:
        if job in leaving:
            del contenders[job]
        else:
            contenders[job] = whole[job]
        settled = policy.decide_ranks(list(contenders.values()), alone)
        for decided, verdict in settled.items():
            assert told.setdefault(decided, verdict is None) == (verdict is None)
    assert told == {job: verdict is None for job, verdict in final.items()}
    if alone is None:
        fewest, most = (math.ceil(part * keep * len(final)) for part in (0.5, 1.5))
        assert not final or min(fewest, len(final)) <= sum(told.values()) <= max(1, most)
