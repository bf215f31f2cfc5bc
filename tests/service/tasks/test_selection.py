"""How the winner is chosen, what is said where nothing beat the base, and what to try next."""

import random
from dataclasses import replace

import pytest

from contract.job_config import JobConfig
from contract.row_scores import RowScores
from service.tasks.next_search import Tried, of_no_winner, suggestions
from service.tasks.selection import Candidate, choose

ROWS = 100


def scores(mean: float, seed: int = 0, noise: float = 0.05) -> RowScores:
    hard, own = random.Random(1), random.Random(seed)
    return RowScores(totals=[hard.uniform(0, 4) + mean + own.gauss(0, noise) for _ in range(ROWS)])


def candidate(index: int, mean: float, rank: int = 8, **how: float) -> Candidate:
    made = scores(mean, index, **how)
    return Candidate(index, rank, made.mean, made)


def test_the_smallest_rank_within_one_standard_error_of_the_best_wins():
    """Of one level but for noise the ranks decide; one that is surely worse does not win, however small its rank."""
    best, tie, worse = candidate(0, 0.0, 64), candidate(1, 0.003, 16), candidate(2, 0.5, 4)
    winner, said = choose([best, tie, worse], scores(1.0, 9))
    assert (winner.index, said.rule, said.tied) == (1, "one_standard_error", [0, 1])
    assert said.value.low < said.value.mean < said.value.high
    assert 0.9 < said.gain.low < said.gain.mean < said.gain.high < 1.1
    assert said.beats_base
    assert said.verdict.startswith("job 1 won: validation loss ")


def test_of_equal_jobs_the_lower_index_wins():
    one = scores(0.0)
    winner, said = choose([Candidate(2, 8, one.mean, one), Candidate(1, 8, one.mean, one)], None)
    assert (winner.index, said.tied, said.beats_base) == (1, [1, 2], None)


def test_a_gain_that_may_be_none_is_said_to_be_none():
    """The best of three by luck: its mean is below the base's, but no more than rows differ by chance."""
    jobs = [candidate(index, -0.01, noise=1.0) for index in range(3)]
    winner, said = choose(jobs, scores(0.0, 9))
    assert said.beats_base is False
    assert winner in jobs
    assert said.gain.low < 0 < said.gain.high
    assert said.verdict.startswith(f"nothing beat the base: the best, job {winner.index}, has validation loss ")
    assert "does not exclude 0" in said.verdict


def test_what_is_surely_worse_than_the_base_is_said_to_be():
    _, said = choose([candidate(0, 1.0, noise=0.01)], scores(0.0, 9))
    assert said.gain.high < 0
    assert said.verdict.startswith("nothing beat the base: the best, job 0, has validation loss ")
    assert said.verdict.endswith("rows, so it is worse than the base")


def test_among_ties_one_that_beats_the_base_goes_before_a_smaller_rank():
    base = scores(0.0, 9, 0.0)
    sure, vague = candidate(0, -0.1, 64, noise=0.01), candidate(1, -0.1, 4, noise=2.0)
    assert not choose([vague], base)[1].beats_base
    assert choose([sure, vague], base)[0] is sure


def test_a_small_sure_gain_wins_over_a_large_one_that_may_be_luck():
    """It is more than one standard error worse than the best, whose own gain may be none."""
    base = RowScores(totals=[5.0] * 20)
    spread = [0.72 if row % 2 else -0.72 for row in range(20)]  # 0.165 standard errors of its mean
    lucky, sure = RowScores(totals=[4.7 + one for one in spread]), RowScores(totals=[4.9 + one / 100 for one in spread])
    winner, said = choose([Candidate(0, 8, 4.7, lucky), Candidate(1, 8, 4.9, sure)], base)
    assert (winner.index, said.beats_base, said.tied) == (1, True, [1])
    assert said.verdict.startswith("job 1 won: ")
    assert said.verdict.endswith("; job 0 has a better mean, whose gain over the base may be chance")


def test_jobs_that_were_ranked_out_count_among_those_that_the_winner_is_the_best_of():
    """300 searches of 64 jobs that learned nothing, of which a cut by the same rows keeps the luckiest four."""
    draw, surely = random.Random(17), 0
    base = RowScores(totals=[1.0] * 60)
    for _ in range(300):
        jobs = (RowScores(totals=[1 + draw.gauss(0, 1) for _ in range(60)]) for _ in range(64))
        kept = sorted(jobs, key=lambda scores: scores.mean)[:4]
        _, said = choose([Candidate(index, 8, one.mean, one) for index, one in enumerate(kept)], base, ranked_out=60)
        surely += said.beats_base
        assert said.compared == 64
    assert surely / 300 < 0.05


def test_without_any_scores_the_lowest_loss_wins():
    winner, said = choose([Candidate(0, 8, 1.5, None), Candidate(1, 8, 1.2, None)], scores(1.0))
    assert (winner.index, said.rule, said.value, said.beats_base) == (1, "lowest_loss", None, None)
    assert (said.verdict, said.unscored) == ("job 1 won: the lowest validation loss, 1.2000", [])


def test_a_job_without_scores_leaves_the_choice_to_those_that_have_them():
    """Its loss is of fewer rows, and in a search over beta of another scale."""
    winner, said = choose([candidate(0, 0.0), candidate(1, 0.5), Candidate(2, 4, 0.01, None)], scores(1.0, 9))
    assert (winner.index, said.rule, said.unscored, said.beats_base) == (0, "one_standard_error", [2], True)
    assert said.verdict.endswith("; 1 other could not be scored by validation loss")


def test_a_search_over_beta_compares_accuracies():
    """Job 1 has the lower loss by its own beta, and orders fewer pairs rightly."""
    good, bad = (RowScores(metric="error", totals=[0.0] * right + [1.0] * (ROWS - right)) for right in (90, 60))
    base = RowScores(metric="error", totals=[0.5] * ROWS)
    winner, said = choose([Candidate(0, 8, 0.211, good), Candidate(1, 8, 0.014, bad)], base)
    assert (winner.index, said.metric) == (0, "val_accuracy")
    assert said.value.mean == pytest.approx(0.9)
    assert said.gain.mean == pytest.approx(0.4)
    assert 0.8 < said.value.low < 0.9 < said.value.high < 1.0


def answers(*right: int) -> RowScores:
    """Of ROWS prompts these are answered rightly."""
    return RowScores(metric="error", totals=[0.0 if place in right else 1.0 for place in range(ROWS)])


def test_a_text_metric_has_its_name_its_interval_and_its_gain():
    base = answers(*range(10))
    good, bad = answers(*range(60)), answers(*range(5, 40))
    winner, said = choose([Candidate(0, 64, 1.5, good), Candidate(1, 4, 0.5, bad)], base, "rouge")
    assert (winner.index, said.metric, said.rule, said.of_texts) == (0, "rouge", "not_surely_worse", True)
    assert said.value.mean == pytest.approx(0.6)
    assert said.gain.mean == pytest.approx(0.5)
    assert 0.3 < said.gain.low < 0.5 < said.gain.high < 0.7
    assert said.beats_base


def test_the_interval_of_a_share_stays_a_share():
    """Student's interval of 8 right answers of 9 would reach beyond 1, and that of 1 below 0."""
    for right, ends in ((8, (0.63, 1.0)), (1, (0.0, 0.37))):
        texts = RowScores.of_results([float(prompt < right) for prompt in range(9)])
        _, said = choose([Candidate(0, 8, 1.0, texts)], None, "exact_match")
        assert (said.value.low, said.value.high) == pytest.approx(ends, abs=0.01)


@pytest.mark.parametrize(("pairs", "beats"), [(8, True), (6, True), (5, False)])
def test_pairs_that_are_all_ordered_rightly_still_have_an_interval(pairs: int, beats: bool) -> None:
    """n of n pairs: Clopper and Pearson's interval is 0.025 ** (1 / n) to 1. A coin orders five rightly in 3 % of the cases."""
    scores, base = (RowScores(metric="error", totals=[error] * pairs) for error in (0.0, 0.5))
    _, said = choose([Candidate(0, 8, 0.1, scores)], base)
    lowest = 0.025 ** (1 / pairs)
    assert (said.value.low, said.value.high) == pytest.approx((lowest, 1.0))
    assert (said.gain.low, said.gain.high) == pytest.approx((lowest - 0.5, 0.5))
    assert said.beats_base is beats


def test_the_width_of_equal_gains_holds_for_all_jobs_at_once():
    right, base = RowScores.of_results([1.0] * 8), RowScores.of_results([0.0] * 8)
    _, said = choose([Candidate(index, 8, 1.0, right) for index in range(4)], base, "exact_match")
    assert (said.gain.low, said.gain.high) == pytest.approx((2 * (0.025 / 4) ** (1 / 8) - 1, 1.0))
    assert said.value.low == pytest.approx(0.025 ** (1 / 8))
    _, worse = choose([Candidate(0, 8, 1.0, base)], right, "exact_match")
    assert (worse.gain.low, worse.gain.high, worse.value.low) == pytest.approx((-1.0, 1 - 2 * 0.025 ** (1 / 8), 0.0))
    _, same = choose([Candidate(0, 8, 1.0, right)], right, "exact_match")
    assert (same.gain.low, same.gain.high, same.beats_base) == (-same.gain.high, pytest.approx(0.369, abs=1e-3), False)


def test_losses_that_differ_equally_keep_students_interval():
    equal, lower = RowScores(totals=[1.0] * 4), RowScores(totals=[0.5] * 4)
    _, said = choose([Candidate(0, 8, 0.5, lower)], equal)
    assert (said.gain.low, said.gain.high, said.beats_base) == (0.5, 0.5, True)


def test_texts_that_cannot_tell_jobs_apart_leave_the_choice_to_the_loss():
    """Prompts are few; the loss is of many rows, and says more than a rank."""
    same = answers(*range(30))
    jobs = [Candidate(0, 8, 1.5, same), Candidate(1, 8, 1.2, same), Candidate(2, 64, 1.1, same)]
    winner, said = choose(jobs, answers(), "rouge")
    assert (winner.index, said.tied) == (2, [0, 1, 2])


@pytest.mark.parametrize(("ahead", "wins"), [(3, 1), (5, 0)])
def test_the_metric_overrules_the_loss_only_where_it_is_sure(ahead, wins):
    """So many prompts more of 100, and none less: three are 1.7 standard errors, five are 2.3."""
    jobs = [Candidate(0, 8, 1.5, answers(*range(30 + ahead))), Candidate(1, 8, 1.2, answers(*range(30)))]
    winner, said = choose(jobs, answers(), "rouge")
    assert (winner.index, said.tied) == ((1, [0, 1]) if wins else (0, [0]))


def test_a_job_without_texts_cannot_win_by_them():
    winner, said = choose([Candidate(0, 8, 0.1, None), Candidate(1, 8, 1.2, answers(3))], answers(4), "rouge")
    assert (winner.index, said.unscored, said.tied) == (1, [0], [1])
    assert said.verdict.startswith("nothing beat the base: the best, job 1, has rouge 0.01")
    assert said.verdict.endswith(f"by {ROWS} prompts, which does not exclude 0; 1 other could not be scored by rouge")


def test_texts_of_different_prompts_are_compared_by_their_means():
    fewer = RowScores(metric="error", totals=[0.0] * 7 + [1.0] * 3)
    winner, said = choose([Candidate(0, 8, 0.1, answers(*range(60))), Candidate(1, 64, 1.2, fewer)], answers(), "rouge")
    assert (winner.index, said.rule, said.gain) == (1, "highest_score", None)


def config(rate: float = 1e-3, **more: object) -> JobConfig:
    return JobConfig.model_validate({"learning_rate": rate, "rank": 8, "alpha": 16, "batch_size": 4, "seed": 0} | more)


def tried(means: dict[JobConfig, float], noise: float = 0.05) -> list[Tried]:
    return [Tried(one, scores(mean, seed, noise)) for seed, (one, mean) in enumerate(means.items())]


def by_rate(means: dict[float, float], noise: float = 0.05) -> list[Tried]:
    return tried({config(rate): mean for rate, mean in means.items()}, noise)


def test_the_edge_of_the_grid_is_named_with_its_gain_and_a_value_beyond():
    grid = tried({config(rate, rank=rank): 1 - 1000 * rate for rate in (1e-4, 5e-4) for rank in (8, 16)}, 0.001)
    [said] = suggestions(grid, config(5e-4, rank=8), 50, 100)
    assert said.startswith("the best learning rate, 0.0005, is the largest you gave, and better than 0.0001 by 0.4")
    assert said.endswith("): try larger ones, such as 0.0025")
    [drawn] = suggestions(grid, config(5e-4, rank=8), 50, 100, drawn=True)
    assert drawn.startswith("the best learning rate, 0.0005, is the largest that was tried, and better than 0.0001 by 0.4")
    down = tried({config(rate, rank=rank): 1000 * rate - rank / 16 for rate in (1e-4, 5e-4) for rank in (8, 16)})
    lower, larger = suggestions(down, config(1e-4, rank=16), 50, 100)
    assert lower.endswith("): try smaller ones, such as 2e-05")
    assert "rank, 16, is the largest you gave, and better than 8 by " in larger
    assert larger.endswith("): try larger ones, such as 32")


@pytest.mark.parametrize("noise", [0.0, 2.0])
def test_an_edge_no_better_than_its_neighbour_suggests_nothing(noise: float) -> None:
    """The best job has the largest rank, as one of two must: between ranks the rows differ by nothing, or by noise alone."""
    grid = tried({config(rank=rank): 0.0 for rank in (8, 16)}, noise)
    assert suggestions(grid, config(rank=16), 50, 100) == []


def test_an_edge_whose_neighbour_has_no_scores_of_the_same_rows_suggests_nothing():
    edge, neighbour = by_rate({1e-3: 0.0, 1e-4: 5.0})
    assert len(suggestions([edge, neighbour], edge.config, 50, 100)) == 1
    for other in (None, RowScores(totals=[9.0] * 3)):
        assert suggestions([edge, Tried(neighbour.config, other)], edge.config, 50, 100) == []


def test_an_edge_whose_best_neighbour_was_stopped_suggests_nothing():
    """Of the smaller rank only a job with a far too high learning rate has scores, as in the demo."""
    rates = {config(5e-3, rank=16): 0.8, config(1.0, rank=4): 8.1, config(1e-3, rank=16): 2.4}
    scored = [replace(one, lowest=lowest) for one, lowest in zip(tried(rates), rates.values(), strict=True)]
    stopped = Tried(config(5e-3, rank=4), None, lowest=1.8)
    assert suggestions([*scored, stopped], scored[0].config, 50, 100) == []
    [said] = suggestions([*scored, replace(stopped, lowest=9.0)], scored[0].config, 50, 100)
    assert said.startswith("the best rank, 16, is the largest you gave, and better than 4 by 7.3")


def test_a_stopped_jobs_loss_by_another_beta_hides_no_suggestion():
    good, bad = (RowScores(metric="error", totals=[0.0] * right + [1.0] * (ROWS - right)) for right in (90, 50))
    scored = [Tried(config(1e-3, beta=0.1), good, lowest=0.60), Tried(config(1e-4, beta=0.1), bad, lowest=0.68)]
    other, same = Tried(config(1e-3, beta=0.5), None, lowest=0.30), Tried(config(1e-3, beta=0.1, seed=1), None, lowest=0.30)
    [said] = suggestions([*scored, other], scored[0].config, 50, 100)
    assert said.startswith("the best learning rate, 0.001, is the largest you gave")
    assert suggestions([*scored, same], scored[0].config, 50, 100) == []


def test_the_inside_of_the_grid_suggests_nothing():
    assert suggestions(by_rate({1e-4: 2.0, 1e-3: 1.0, 1e-2: 2.0}), config(1e-3), 50, 100) == []
    sizes = tried({config(batch_size=size): size for size in (1, 2)})
    assert suggestions(sizes, config(batch_size=1), 50, 100) == []  # none is smaller
    assert suggestions(tried({config(rank=r): -r for r in (128, 256)}), config(rank=256), 50, 100) == []  # none is larger


def test_no_batch_size_beyond_the_rows_is_suggested():
    def said(rows: int, better: float = -1.0) -> list[str]:
        return suggestions(tried({config(batch_size=n): better * n for n in (32, 64)}), at, 50, 100, train_rows=rows)

    at = config(batch_size=64)
    assert [one.rsplit(" ", 1)[1] for rows in (1000, 100) for one in said(rows)] == ["128", "100"]
    assert said(64) == said(50) == []
    at = config(batch_size=32)
    assert [one.rsplit(" ", 1)[1] for one in said(20, better=1.0)] == ["16"]


def test_when_the_loss_was_lowest_says_how_long_to_train():
    only = by_rate({1e-3: 1.0})
    longer = suggestions(only, config(), 100, 100)[0]
    assert longer.startswith("the best job's loss was lowest at its last step")
    assert "max_steps" in longer, "which more epochs do not move"
    assert suggestions(only, config(), 10, 100)[0].startswith("the best job's loss was lowest after 10 of 100 steps")


def test_where_nothing_beat_the_base_the_data_comes_first():
    found = of_no_winner(by_rate({1e-4: 1.0, 1e-2: 2.0}), config(1e-4), 20, True)
    assert found[0].startswith("check the data")
    assert found[1].startswith(
        "try lower learning rates, such as 1e-05: 0.0001 is the smallest you gave, and better than 0.01 by"
    )
    assert found[2].startswith("bring more rows: 20 validation rows")
    assert len(of_no_winner(by_rate({1e-4: 2.0, 1e-2: 1.0}), config(1e-2), 20, False)) == 1
    assert len(of_no_winner(by_rate({1e-4: 1.0, 1e-2: 1.0}, 0.0), config(1e-4), 20, False)) == 1  # no rate is better
    assert "raise evaluation.max_prompts" in of_no_winner(by_rate({1e-3: 1.0}), config(), 20, True, of_texts=True)[-1]
