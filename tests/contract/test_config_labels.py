"""Words for configurations: every field of JobConfig has a heading and a cell, whatever its value."""

import pytest

from contract.job_config import JobConfig
from contract.wording.config_labels import ALL_DIGITS, HEADINGS, MAIN, cell, digits_of, label, varying, winner_label

PLAIN = {"learning_rate": 1e-4, "rank": 8, "alpha": 16.0, "batch_size": 4, "seed": 0}
OTHER = {
    "learning_rate": 5e-3,
    "rank": 16,
    "alpha": 3.0,
    "batch_size": 2,
    "seed": 7,
    "dropout": 0.1,
    "weight_decay": 0.5,
    "schedule": "cosine",
    "lr_warmup_ratio": 0.25,
    "target_modules": ("q_proj", "v_proj"),
    "rslora": True,
    "beta": 0.3,
}


def test_every_field_has_a_heading() -> None:
    assert list(HEADINGS) == list(JobConfig.model_fields)
    assert set(OTHER) == set(HEADINGS)


@pytest.mark.parametrize("name", JobConfig.model_fields)
def test_a_field_that_varies_is_named_and_tells_the_jobs_apart(name: str) -> None:
    one, two = JobConfig(**PLAIN), JobConfig(**PLAIN | {name: OTHER[name]})
    names = varying([one, two])
    assert name in names
    assert "learning_rate" in names
    assert cell(one, name) != cell(two, name)
    assert label(one, names) != label(two, names)


def test_jobs_that_differ_in_beta_alone_are_told_apart_where_one_is_told_by_itself() -> None:
    one, two = (JobConfig(**PLAIN | {"beta": beta}) for beta in (0.1, 0.3))
    assert label(one, MAIN).removesuffix("0.1") == label(two, MAIN).removesuffix("0.3")
    assert label(two, MAIN).endswith(", beta 0.3")
    assert "beta" not in label(JobConfig(**PLAIN), MAIN)


def test_alpha_that_follows_the_rank_is_no_axis() -> None:
    configs = [JobConfig(**PLAIN), JobConfig(**PLAIN | {"rank": 16, "alpha": 32.0})]
    assert varying(configs) == ["learning_rate", "rank"]
    assert label(configs[1], varying(configs)) == "lr 0.0001, rank 16"


def test_a_rate_that_a_program_computed_is_written_as_it_was_meant() -> None:
    config = JobConfig(**PLAIN | {"learning_rate": 3.0000000000000004e-05, "dropout": 0.1 + 0.2, "seed": 2**31 - 1})
    assert label(config, ["learning_rate", "dropout", "seed"]) == "lr 3e-05, dropout 0.3, seed 2147483647"
    assert cell(config, "learning_rate", ALL_DIGITS) == "3.0000000000000004e-05"


def test_digits_are_as_few_as_tell_the_jobs_of_a_task_apart() -> None:
    rates = [10 ** (-4 + step / 4) for step in range(5)]
    one, *others = configs = [JobConfig(**PLAIN | {"learning_rate": rate}) for rate in rates]
    digits = digits_of(configs)
    assert [cell(each, "learning_rate", digits) for each in configs] == ["0.0001", "0.000178", "0.000316", "0.000562", "0.001"]
    near = JobConfig(**PLAIN | {"learning_rate": 1.00012e-4})
    digits = digits_of([near, *configs])
    assert [cell(each, "learning_rate", digits) for each in (one, near)] == ["0.0001", "0.00010001"]
    assert winner_label(near, [near, *configs]).startswith("lr 0.00010001,")
    assert winner_label(near, [near, *others]).startswith("lr 0.0001,")
