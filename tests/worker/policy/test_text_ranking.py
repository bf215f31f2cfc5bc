"""Ranks by a text metric at the end of warmup, against a slow exact reference; each policy's cut by them; who waits."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract.early_exit_policy import EarlyExitPolicy
from contract.row_scores import RowScores, t_quantile
from contract.states import ExitReason
from contract.wording.exit_sentences import exit_sentence
from worker.policy.early_exit.policy_interface import Standing
from worker.policy.early_exit.policy_selection import policy_of
from worker.policy.early_exit.ranking import by_texts

EIGHTHS = st.integers(0, 8).map(lambda eighths: eighths / 8)
PROMPTS = 16


def standing(job: int, loss: float, results: list[float] | None, validated: bool = True) -> Standing:
    """validated: whether it has scores of validation rows, which are its loss in each, so that any difference is sure."""
    texts = RowScores.of_results(results) if results is not None else None
    return Standing(job, (loss,), RowScores(totals=[loss] * 4) if validated else None, texts)


def hits(right: int, shift: int = 0) -> list[float]:
    """So many right answers of PROMPTS."""
    return [float((place + shift) % PROMPTS < right) for place in range(PROMPTS)]


def reference(jobs: dict[int, tuple[float, list[float] | None]]) -> list[int]:
    """In exact numbers: who would win, whom it equals, by loss; then the same of the rest; last, by loss, who has no texts."""
    left = {job for job, (_, results) in jobs.items() if results is not None}
    order: list[int] = []
    while left:
        best = min(left, key=lambda job: (-sum(map(Fraction, jobs[job][1])), jobs[job][0], job))
        equal = [job for job in left if job == best or not surely_worse(jobs[job][1], jobs[best][1])]
        order += sorted(equal, key=lambda job: (jobs[job][0], job))
        left -= set(equal)
    return order + sorted((job for job, (_, results) in jobs.items() if results is None), key=lambda job: (jobs[job][0], job))


def surely_worse(own: list[float], best: list[float]) -> bool:
    worse = [Fraction(there) - Fraction(here) for here, there in zip(own, best, strict=True)]
    n, mean = len(worse), sum(worse) / len(worse)
    if n < 2 or mean <= 0:
        return False
    return mean * mean > Fraction(t_quantile(n - 1)) ** 2 * sum((one - mean) ** 2 for one in worse) / (n - 1) / n


@given(
    st.integers(1, 24).flatmap(
        lambda prompts: st.dictionaries(
            st.integers(0, 20),
            st.tuples(EIGHTHS, st.none() | st.lists(st.sampled_from([0.0, 1.0]) | EIGHTHS, min_size=prompts, max_size=prompts)),
            min_size=1,
            max_size=9,
        )
    )
)
def test_the_order_is_the_winners_rule_again_and_again(jobs):
    found = by_texts([standing(job, loss, results) for job, (loss, results) in jobs.items()])
    assert [place.job for place in found] == reference(jobs)


@pytest.mark.parametrize("prompts", range(2, 130))
def test_one_more_right_answer_is_just_one_standard_error_whatever_their_number(prompts):
    none, one = (RowScores.of_results([right] + [0.0] * (prompts - 1)) for right in (0.0, 1.0))
    assert none.as_good_as(one)
    two = RowScores.of_results([1.0, 1.0, *[0.0] * (prompts - 2)])
    assert not none.as_good_as(two)


def verdicts(policy: str, standings: list[Standing], base: RowScores | None = None, base_loss: float = -9.0, **how):
    """base_loss: by it every job with scores is worse than the base, which must not matter where texts are scored."""
    made = policy_of(EarlyExitPolicy(policy=policy, **how), "found")
    return made.decide_ranks(standings, RowScores(totals=[base_loss] * 4), base)


def kept(decided) -> set[int]:
    return {job for job, verdict in decided.items() if verdict is None}


@pytest.mark.parametrize("policy", ["alto", "alto_guarded"])
def test_none_is_decided_before_all_are_scored(policy):
    here = [standing(job, float(job), hits(4 * job)) for job in range(4)]
    assert verdicts(policy, [*here, Standing(4, ())]) == {}
    assert len(verdicts(policy, here)) == 4


def test_altos_keeps_its_fraction_by_the_metric():
    decided = verdicts("alto", [standing(job, float(job), hits(5 * job)) for job in range(4)], keep_fraction=0.5)
    assert kept(decided) == {2, 3}
    evidence = decided[0].evidence
    assert (evidence["metric"], evidence["score"], evidence["last_kept_score"], evidence["val_loss"]) == ("found", 0, 0.625, 0)
    assert exit_sentence(decided[0].reason, evidence) == "4th of 4 after warmup by found, at most 2 go on"


def test_among_equals_the_lowest_loss_goes_first():
    decided = verdicts("alto", [standing(job, 9.0 - job, hits(8, job)) for job in range(4)], keep_fraction=0.25)
    assert kept(decided) == {3}


def test_between_floor_and_ceiling_the_paired_test_over_prompts_decides():
    """Three of 16 are equal by the metric, though their losses are the highest; the others are surely worse."""
    jobs = [standing(job, 20.0 if job < 3 else 0.1 * job, hits(16 if job < 3 else 2)) for job in range(16)]
    decided = verdicts("alto_guarded", jobs)
    assert kept(decided) == {0, 1, 2}
    evidence = decided[3].evidence
    assert (evidence["metric"], evidence["prompts"], evidence["best_score"]) == ("found", PROMPTS, 1)
    assert 0 < evidence["difference_low"] < evidence["difference"] == 0.875
    said = exit_sentence(ExitReason.UNDERPERFORMING, evidence)
    assert said == "worse than the best at the end of warmup by 0.69 to 1.1 in found (95 %, 16 prompts)"


def test_whom_the_metric_does_not_part_from_the_best_validation_does():
    """All 16 have as many right answers, of other prompts; by validation all but the first are surely worse. The floor is 2."""
    decided = verdicts("alto_guarded", [standing(job, 1.0 + job, hits(8, job)) for job in range(16)])
    assert kept(decided) == {0, 1}
    evidence = decided[2].evidence
    assert (evidence["tied_by"], evidence["val_loss"], evidence["best_val_loss"], evidence["rows"]) == ("found", 3, 1, 4)
    said = exit_sentence(ExitReason.UNDERPERFORMING, evidence)
    assert said == (
        "worse than the best at the end of warmup by 2 to 2 (95 %, 4 validation rows); "
        "found does not tell it from the best, so validation decided"
    )
    assert len(kept(verdicts("alto_guarded", [standing(job, 1.0, hits(8, job)) for job in range(16)]))) == 6, "nothing decides"


def test_by_a_metric_a_job_is_cut_though_none_is_surely_better_than_the_base():
    """As where the paired test decides, but the base has as many right answers as the best."""
    jobs = [standing(job, 20.0 if job < 3 else 0.1 * job, hits(16 if job < 3 else 2)) for job in range(16)]
    assert kept(verdicts("alto_guarded", jobs, RowScores.of_results(hits(16)))) == {0, 1, 2}


def test_validation_parts_equals_from_the_first_of_them_not_from_the_best_by_the_metric():
    """Job 0 has the most right answers and the highest loss; of its equals, job 1 goes first."""
    jobs = [standing(job, loss, hits(right)) for job, (loss, right) in enumerate(((5.0, 16), (1.0, 15), (3.0, 15)))]
    decided = verdicts("alto_guarded", jobs, keep_fraction=2 / 3)
    assert kept(decided) == {1}
    assert [decided[job].evidence["best_val_loss"] for job in (0, 2)] == [1.0, 1.0]


def test_scores_of_other_prompts_are_ranked_by_their_means_alone():
    assert [place.job for place in by_texts([standing(0, 0.0, [1.0, 0.0] * 8), standing(1, 1.0, [1.0] * 4)])] == [1, 0]


def test_a_paired_test_is_against_the_best_by_the_metric_not_the_first_of_its_equals():
    """Job 1 goes first by its loss, and is not surely worse than job 0; job 2 is surely worse than job 0 alone."""
    results = ((5.0, 16), (1.0, 15), (2.0, 12))
    jobs = [standing(job, loss, hits(right), validated=False) for job, (loss, right) in enumerate(results)]
    assert [place.job for place in by_texts(jobs)] == [1, 0, 2]
    assert jobs[2].texts.minus(jobs[0].texts).interval[0] > 0 >= jobs[2].texts.minus(jobs[1].texts).interval[0]
    assert kept(verdicts("alto_guarded", jobs, keep_fraction=2 / 3)) == {0, 1}


def test_a_search_that_only_harms_the_metric_ends_and_keeps_the_lowest_loss_of_its_best():
    jobs = [standing(job, 3.0 - job, hits(job == 0), validated=False) for job in range(3)]
    decided = verdicts("alto_guarded", jobs, RowScores.of_results(hits(12)))
    assert [decided[job].keeps_adapter_though_ranked_out for job in range(3)] == [False, False, True]
    said = exit_sentence(decided[0].reason, decided[0].evidence)
    assert said == "no job beats the base after warmup by found: 0.0625, the base alone 0.7500"
    assert kept(verdicts("alto_guarded", jobs, RowScores.of_results(hits(2)))) == {1, 2}, "not surely worse"
    assert kept(verdicts("alto_guarded", jobs)) == {1, 2}, "the base's texts could not be scored"


def test_jobs_without_scores_are_last_and_where_all_are_the_losses_decide():
    some = [standing(0, 0.0, None), standing(1, 1.0, None), standing(2, 3.0, hits(1)), standing(3, 2.0, hits(16))]
    decided = verdicts("alto", some, keep_fraction=0.5)
    assert kept(decided) == {2, 3}
    said = exit_sentence(decided[1].reason, decided[1].evidence)
    assert said == "4th of 4 after warmup by found (its texts could not be scored), at most 2 go on"
    none = [standing(job, float(job), None) for job in range(4)]
    for policy in ("alto", "alto_guarded"):
        decided = verdicts(policy, none, base_loss=9.0, keep_fraction=0.25)
        assert kept(decided) == {0}
        said = exit_sentence(decided[3].reason, decided[3].evidence)
        assert said.endswith("; no job's texts could be scored by found, so validation decided")


def test_asha_goes_by_the_metric_at_its_first_rung_and_by_losses_at_the_others():
    here = [standing(job, float(job), hits(5 * job)) for job in range(4)]
    decided = verdicts("asha", here, reduction_factor=2)
    assert kept(decided) == {2, 3}
    assert exit_sentence(decided[0].reason, decided[0].evidence).endswith("reached the rung so far, by found")
    later = [Standing(job, (0.0, float(job)), None, RowScores.of_results(hits(5 * job))) for job in range(4)]
    assert kept(verdicts("asha", later, reduction_factor=2)) == {0, 1}
