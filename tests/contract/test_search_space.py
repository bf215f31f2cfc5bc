"""A search space: which jobs it becomes, in which order, and what a job's numbers mean."""

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract.job_config import MODULES, JobConfig
from contract.search_space import MAX_JOBS, ListedJob, SearchSpace

AXES = ("learning_rate", "rank", "alpha", "batch_size", "dropout", "weight_decay", "schedule", "rslora", "seed")
DEFAULTS = {"dropout": 0.0, "weight_decay": 0.01, "schedule": "constant", "rslora": False}


def positive(limit: float) -> st.SearchStrategy[float]:
    return st.floats(min_value=1e-8, max_value=limit, allow_nan=False, allow_infinity=False)


def distinct(values: st.SearchStrategy) -> st.SearchStrategy[list]:
    return st.lists(values, min_size=1, max_size=2, unique=True)  # nine axes of two stay within MAX_JOBS


axes = st.fixed_dictionaries(
    {
        "learning_rate": distinct(positive(1.0)),
        "rank": distinct(st.integers(1, 256)),
        "batch_size": distinct(st.integers(1, 1024)),
        "seed": distinct(st.integers(0, 2**31 - 1)),
    },
    optional={
        "alpha": distinct(positive(512.0)),
        "dropout": distinct(st.floats(0, 0.9)),
        "weight_decay": distinct(st.floats(0, 1)),
        "schedule": distinct(st.sampled_from(["constant", "linear", "cosine"])),
        "rslora": distinct(st.booleans()),
    },
)


def product_of(values: dict[str, list]) -> list[tuple]:
    """Every combination, the last axis fastest; without alphas, alpha is twice the rank."""
    names = [name for name in AXES if name in values]
    for picked in itertools.product(*(values[name] for name in names)):
        point = dict(zip(names, picked, strict=True))
        point.setdefault("alpha", 2.0 * point["rank"])
        yield tuple((DEFAULTS | point)[name] for name in AXES)


def as_tuple(config: JobConfig) -> tuple:
    return tuple(getattr(config, name) for name in AXES)


@given(axes)
def test_a_grid_is_the_product_in_order(values):
    made = SearchSpace.model_validate(values)
    expanded = [as_tuple(config) for config in made.expand()]
    assert expanded == list(product_of(values))
    assert made.size == made.combinations == len(expanded)


@given(axes, st.data())
def test_a_random_draw_is_a_distinct_part_of_the_grid_that_its_seed_decides(values, data):
    grid = list(product_of(values))
    n = data.draw(st.integers(1, len(grid)))
    seed = data.draw(st.integers(0, 2**31 - 1))
    drawing = values | {"method": "random", "n": n, "draw_seed": seed}
    drawn = [as_tuple(config) for config in SearchSpace.model_validate(drawing).expand()]
    assert len(drawn) == n
    assert len(set(drawn)) == n
    assert set(drawn) <= set(grid)
    assert drawn == [as_tuple(config) for config in SearchSpace.model_validate(drawing).expand()]


def test_another_seed_draws_others():
    values = {"learning_rate": [n / 1000 for n in range(1, 101)], "rank": list(range(1, 101)), "method": "random", "n": 20}
    first, second = (set(map(as_tuple, SearchSpace(**values, draw_seed=seed).expand())) for seed in (0, 1))
    assert first != second


def test_a_draw_from_a_huge_space_lists_nothing_but_what_it_draws():
    values = {name: list(range(1, 257)) for name in ("learning_rate", "rank", "alpha", "batch_size", "seed")}
    made = SearchSpace.model_validate(values | {"method": "random", "n": MAX_JOBS})
    assert made.combinations == 256**5
    assert len({as_tuple(config) for config in made.expand()}) == MAX_JOBS


def test_a_list_is_taken_as_it_stands():
    jobs = [
        {"learning_rate": 1e-3, "rank": 4, "seed": 3},
        {"learning_rate": 1e-4, "alpha": 7, "target_modules": ["v_proj", "q_proj"]},
    ]
    first, second = SearchSpace.model_validate({"method": "list", "jobs": jobs}).expand({"weight_decay": 0.3})
    assert first == JobConfig(learning_rate=1e-3, rank=4, alpha=8, batch_size=4, seed=3, weight_decay=0.3)
    assert (second.rank, second.alpha, second.target_modules) == (16, 7, ("q_proj", "v_proj"))


def test_a_listed_job_and_a_space_leave_out_the_same():
    """Both have every dimension, and what is left out of either becomes the same job."""
    (listed,) = SearchSpace(method="list", jobs=[ListedJob(learning_rate=1e-3)]).expand()
    (drawn,) = SearchSpace(learning_rate=[1e-3]).expand()
    assert listed == drawn
    assert set(JobConfig.model_fields) == set(ListedJob.model_fields)
    assert set(JobConfig.model_fields) <= set(SearchSpace.model_fields)


@given(st.integers(1, 256), positive(8.0))
def test_alpha_as_a_multiple_of_the_rank(rank, ratio):
    (config,) = SearchSpace(learning_rate=[1e-3], rank=[rank], alpha_ratio=[ratio]).expand()
    assert config.alpha == ratio * rank


@given(st.integers(1, 256), positive(512.0))
def test_the_scale_of_an_adapter(rank, alpha):
    plain = JobConfig(learning_rate=1e-3, rank=rank, alpha=alpha, batch_size=1, seed=0)
    stable = plain.model_copy(update={"rslora": True})
    assert (plain.scale, plain.plain_alpha) == (alpha / rank, alpha)
    assert stable.scale == pytest.approx(alpha / math.sqrt(rank))
    assert stable.plain_alpha / rank == pytest.approx(stable.scale)


def rates(steps: int, **changes) -> list[float]:
    config = JobConfig(learning_rate=1.0, rank=1, alpha=1, batch_size=1, seed=0, **changes)
    return [config.rate_at(step, steps) for step in range(steps)]


def test_schedules_by_hand():
    assert rates(4) == [1, 1, 1, 1]
    assert rates(4, schedule="linear") == [1, 0.75, 0.5, 0.25]
    assert rates(4, schedule="cosine") == pytest.approx([1, 0.5 + 0.5**1.5, 0.5, 0.5 - 0.5**1.5])
    assert rates(6, schedule="linear", lr_warmup_ratio=1 / 3) == [0.5, 1, 1, 0.75, 0.5, 0.25]
    assert rates(5, lr_warmup_ratio=0.5) == pytest.approx([1 / 3, 2 / 3, 1, 1, 1])  # 2.5 steps are 3
    assert rates(100, lr_warmup_ratio=0.07).index(1) == 6  # as a float, 0.07 of 100 is a little more than 7


@given(st.integers(1, 200), st.floats(0, 0.99), st.sampled_from(["constant", "linear", "cosine"]))
def test_a_rate_rises_to_its_highest_then_never_again(steps, ratio, schedule):
    made = rates(steps, schedule=schedule, lr_warmup_ratio=ratio)
    top = math.ceil(ratio * steps)
    assert all(0 < rate <= 1 for rate in made)
    assert made[:top] == sorted(made[:top])
    assert made[top:] == sorted(made[top:], reverse=True)
    assert 1 in made


def test_all_modules_is_what_is_left_out():
    (config,) = SearchSpace(learning_rate=[1e-3]).expand()
    assert config.target_modules == MODULES


def test_a_space_of_every_method_reads_itself_back():
    rates = {"learning_rate": [1e-4, 2e-4]}
    for said in (rates, rates | {"method": "random", "n": 1}, {"method": "list", "jobs": [{"learning_rate": 1e-4, "seed": 3}]}):
        space = SearchSpace.model_validate(said)
        assert SearchSpace.model_validate(space.model_dump(mode="json")) == space
