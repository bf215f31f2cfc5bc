"""TaskSpec: what it refuses, in words that name the field, and how a search space becomes jobs."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from contract.spec import MAX_JOBS, JobConfig, SearchSpace, TaskSpec

AXES = ("learning_rate", "rank", "alpha", "batch_size", "seed")


def spec(**changes: object) -> dict[str, object]:
    good = {"base_model": "m", "dataset": {"file_id": "f"}, "search_space": {"learning_rate": [1e-4]}}
    return good | changes


def space(**changes: object) -> dict[str, object]:
    return spec(search_space={"learning_rate": [1e-4]} | changes)


BAD = [
    (space(rank=[0]), "search_space.rank.0", "greater than or equal to 1"),
    (space(rank=[8, 257]), "search_space.rank.1", "less than or equal to 256"),
    (space(rank=[8.0]), "search_space.rank.0", "integer"),
    (space(rank=["8"]), "search_space.rank.0", "integer"),
    (space(rank=[True]), "search_space.rank.0", "integer"),
    (space(rank=8), "search_space.rank", "list"),
    (space(rank=[]), "search_space.rank", "at least 1 item"),
    (space(rank=[8, 4, 8]), "search_space.rank", "holds 8 more than once"),
    (space(learning_rate=[-1]), "search_space.learning_rate.0", "greater than 0"),
    (space(learning_rate=[0]), "search_space.learning_rate.0", "greater than 0"),
    (space(learning_rate=[float("nan")]), "search_space.learning_rate.0", "finite"),
    (space(learning_rate=[float("inf")]), "search_space.learning_rate.0", "finite"),
    (space(learning_rate=[True]), "search_space.learning_rate.0", "must be a number, not true"),
    (space(learning_rate=[1e-4, 0.0001]), "search_space.learning_rate", "more than once"),
    (space(learning_rate=[]), "search_space.learning_rate", "at least 1 item"),
    (space(alpha=[0]), "search_space.alpha.0", "greater than 0"),
    (space(batch_size=[0]), "search_space.batch_size.0", "greater than or equal to 1"),
    (space(seed=[-1]), "search_space.seed.0", "greater than or equal to 0"),
    (space(dropout=[0.1]), "search_space.dropout", "not permitted"),
    (space(method="bayes"), "search_space.method", "'grid' or 'random'"),
    (space(method="random"), "search_space", "needs 'n'"),
    (space(method="random", n=2), "search_space", "only 1 combinations"),
    (space(method="random", n=0), "search_space.n", "greater than or equal to 1"),
    (space(n=1), "search_space", "belongs to method 'random'"),
    (
        space(learning_rate=[n / 1e6 for n in range(1, 101)], rank=list(range(1, 101)), seed=list(range(100))),
        "search_space",
        "the grid has 1000000 combinations, the limit is 1024",
    ),
    (spec(search_space={}), "search_space.learning_rate", "required"),
    (spec(serach_space={}), "serach_space", "not permitted"),
    (spec(base_model=""), "base_model", "at least 1 character"),
    (spec(base_model="a\0b"), "base_model", "NUL"),
    (spec(name="\0"), "name", "NUL"),
    (spec(labels={"a": "\0"}), "labels.a", "NUL"),
    (spec(labels={str(n): "" for n in range(17)}), "labels", "at most 16"),
    (spec(dataset={}), "dataset.file_id", "required"),
    (spec(dataset={"file_id": "f", "validation_fraction": 0}), "dataset.validation_fraction", "greater than 0"),
    (spec(dataset={"file_id": "f", "validation_fraction": 0.9}), "dataset.validation_fraction", "less than or equal to 0.5"),
    (spec(training={"epochs": 0}), "training.epochs", "greater than or equal to 1"),
    (spec(training={"max_seq_len": 4}), "training.max_seq_len", "greater than or equal to 8"),
    (spec(training={"weight_decay": float("nan")}), "training.weight_decay", "finite"),
    (spec(early_exit={"policy": "asha"}), "early_exit.policy", "'alto' or 'none'"),
    (spec(early_exit={"keep_fraction": 0}), "early_exit.keep_fraction", "greater than 0"),
    (spec(early_exit={"warmup_fraction": 1.5}), "early_exit.warmup_fraction", "less than or equal to 1"),
    (spec(objective={"type": "dpo"}), "objective.type", "'sft'"),
    (spec(gpus=0), "gpus", "greater than or equal to 1"),
    (spec(gpus=True), "gpus", "integer"),
    (spec(priority=101), "priority", "less than or equal to 100"),
]


@pytest.mark.parametrize(("given", "field", "words"), BAD, ids=[f"{field}: {words}" for _, field, words in BAD])
def test_a_mistake_names_its_field_and_the_limit(given, field, words):
    with pytest.raises(ValidationError) as refusal:
        TaskSpec.model_validate(given)
    errors = refusal.value.errors()
    assert [".".join(map(str, error["loc"])) for error in errors] == [field]
    assert words.lower() in errors[0]["msg"].lower()


def test_several_mistakes_are_said_at_once():
    with pytest.raises(ValidationError) as refusal:
        TaskSpec.model_validate(spec(gpus=0, search_space={"learning_rate": [-1], "rank": [0]}))
    assert len(refusal.value.errors()) == 3


def test_a_spec_survives_the_wire():
    made = TaskSpec.model_validate(space(method="random", n=1, alpha=[8]) | {"labels": {"run": "7"}, "gpus": 2})
    assert TaskSpec.model_validate_json(made.model_dump_json()) == made


def positive(limit: float) -> st.SearchStrategy[float]:
    return st.floats(min_value=1e-8, max_value=limit, allow_nan=False, allow_infinity=False)


def distinct(values: st.SearchStrategy) -> st.SearchStrategy[list]:
    return st.lists(values, min_size=1, max_size=4, unique=True)


axes = st.fixed_dictionaries(
    {
        "learning_rate": distinct(positive(1.0)),
        "rank": distinct(st.integers(1, 256)),
        "batch_size": distinct(st.integers(1, 1024)),
        "seed": distinct(st.integers(0, 2**31 - 1)),
    },
    optional={"alpha": distinct(positive(512.0))},
)


def product_of(values: dict[str, list]) -> list[tuple]:
    """Every combination, the last axis fastest; without alphas, alpha is twice the rank."""
    names = [name for name in AXES if name in values]
    for picked in itertools.product(*(values[name] for name in names)):
        point = dict(zip(names, picked, strict=True))
        yield tuple(float(point.get(name, 2 * point["rank"])) for name in AXES)


def as_tuple(config: JobConfig) -> tuple:
    return tuple(float(getattr(config, name)) for name in AXES)


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
    values = {name: list(range(1, 257)) for name in AXES}
    made = SearchSpace.model_validate(values | {"method": "random", "n": MAX_JOBS})
    assert made.combinations == 256**5
    assert len({as_tuple(config) for config in made.expand()}) == MAX_JOBS
