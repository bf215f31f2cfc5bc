"""The sampler against transformers' filters and against the distribution itself; logprobs; each row by itself."""

import math
from collections import Counter

import pytest
import torch
from transformers.generation.logits_process import TemperatureLogitsWarper, TopPLogitsWarper

from worker.generate.sampler import choose, logprobs, uniform
from worker.generate.sequence import Sampling

VOCAB, DRAWS = 23, 4000


def logits(rows: int = 1, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, VOCAB, generator=torch.Generator().manual_seed(seed)) * 2


def test_greedy_takes_the_first_of_the_most_probable() -> None:
    tied = torch.tensor([[0.0, 3.0, 1.0, 3.0], [5.0, 1.0, 1.0, 1.0]])
    assert choose(tied, [Sampling(1), Sampling(1)], [0, 7]) == [1, 0]


@pytest.mark.parametrize(("temperature", "top_p"), [(1.0, 1.0), (0.6, 1.0), (1.0, 0.8), (1.7, 0.35), (0.9, 1e-9)])
def test_draws_follow_the_distribution_that_transformers_samples(temperature: float, top_p: float) -> None:
    row = logits()
    expected = TemperatureLogitsWarper(temperature)(None, row) if temperature != 1 else row  # type: ignore[arg-type]
    expected = TopPLogitsWarper(top_p)(None, expected) if top_p < 1 else expected  # type: ignore[arg-type]
    p = torch.softmax(expected.double(), 1)[0]
    sampling = Sampling(1, temperature, top_p, seed=5)
    drawn = Counter(choose(row.expand(DRAWS, -1), [sampling] * DRAWS, range(DRAWS)))
    assert {token for token in drawn if p[token] == 0} == set()
    for token in range(VOCAB):
        spread = math.sqrt(float(p[token] * (1 - p[token])) / DRAWS)
        assert abs(drawn[token] / DRAWS - float(p[token])) <= 4.5 * spread + 1e-9


@pytest.mark.parametrize("temperature", [1e-3, 1e-308, 5e-324])
def test_the_lowest_temperatures_take_the_most_probable(temperature: float) -> None:
    assert choose(logits(9), [Sampling(1, temperature)] * 9, range(9)) == logits(9).argmax(1).tolist()


def test_a_row_is_drawn_by_its_own_seed_and_place_beside_any_others() -> None:
    rows = logits(150)
    samplings = [Sampling(1, 0.5 + row / 100, 0.9, seed=row % 7) if row % 3 else Sampling(1) for row in range(150)]
    places = [row % 11 for row in range(150)]
    together = choose(rows, samplings, places)
    assert together == [choose(rows[at : at + 1], [samplings[at]], [places[at]])[0] for at in range(150)]
    other_seed = choose(rows[1:2].expand(40, -1), [Sampling(1, 1.0, seed=seed) for seed in range(40)], [0] * 40)
    assert len(set(other_seed)) > 3


def test_uniform_numbers_are_even_over_seeds_and_places() -> None:
    for drawn in ([uniform(3, place) for place in range(DRAWS)], [uniform(seed, 0) for seed in range(DRAWS)]):
        assert 0 <= min(drawn) < max(drawn) < 1
        counts = Counter(int(value * 16) for value in drawn)
        assert sum((counts[bin] - DRAWS / 16) ** 2 / (DRAWS / 16) for bin in range(16)) < 45  # chi^2, 15 degrees: p < 1e-4
    assert uniform(2**64 - 1, 5) != uniform(0, 5)


def test_logprobs_are_of_the_models_distribution_with_the_best_first() -> None:
    rows = logits(3)
    samplings = [Sampling(1, 2.0, 0.1, logprobs=4), Sampling(1), Sampling(1, logprobs=0)]
    found = logprobs(rows, [5, 6, 7], samplings)
    truth = torch.log_softmax(rows.double(), 1)
    assert found[1] is None
    assert found[0] is not None
    assert found[2] is not None
    assert found[0].logprob == pytest.approx(float(truth[0, 5]), abs=1e-6)
    assert [token for token, _ in found[0].top] == truth[0].topk(4).indices.tolist()
    assert [value for _, value in found[0].top] == pytest.approx(truth[0].topk(4).values.tolist(), abs=1e-6)
    assert (found[2].token, found[2].top) == (7, ())


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"max_new_tokens": 0}, "max_new_tokens is 0"),
        ({"temperature": -0.1}, r"temperature is -0\.1"),
        ({"temperature": math.nan}, "temperature is nan"),
        ({"top_p": 0.0}, r"top_p is 0\.0"),
        ({"top_p": 1.1}, r"top_p is 1\.1"),
        ({"stop": ("a", "")}, "empty string"),
        ({"logprobs": 21}, "logprobs is 21; it must be between 0 and 20"),
    ],
)
def test_what_cannot_be_sampled_is_refused_by_its_name(fields: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Sampling(**{"max_new_tokens": 3, **fields})  # type: ignore[arg-type]
