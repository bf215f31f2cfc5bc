"""A job's schedule: how long it trains, when it warms up, when it is evaluated."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract.evaluation_plan import Course
from contract.job_config import JobConfig
from contract.job_schedule import JobSchedule
from contract.task_spec import TaskSpec


def spec(training: dict | None = None, early_exit: dict | None = None, seeds: int = 1, **more: object) -> TaskSpec:
    return TaskSpec.model_validate(
        {
            "base_model": "m",
            "dataset": {"file_id": "f"},
            "search_space": {"learning_rate": [1e-4], "seed": list(range(seeds))},
            "training": training or {},
            "early_exit": early_exit or {},
            **more,
        }
    )


def config(batch_size: int) -> JobConfig:
    return JobConfig(learning_rate=1e-4, rank=8, alpha=16, batch_size=batch_size, seed=0)


def test_the_numbers_of_the_paper():
    made = JobSchedule.of(spec({"epochs": 3}, {"max_evaluation_share": None, "warmup_fraction": 0.05}), config(4), 400)
    assert (made.total_steps, made.warmup_steps, made.eval_every, made.has_boundary) == (300, 15, 10, True)


def test_few_rows_are_evaluated_on_less_often():
    """A small data set affords few evaluations, a large one as many as any."""
    often = {rows: JobSchedule.of(spec({"epochs": 3}), config(1), rows).evaluations for rows in (20, 1000, 10_000)}
    assert 5 <= often[20] < often[1000] < often[10_000] <= 32


def test_a_short_last_step_counts():
    assert JobSchedule.of(spec({"epochs": 2}), config(4), 9).total_steps == 6


def test_a_part_of_a_step_of_warmup_is_a_step():
    assert JobSchedule.of(spec({"epochs": 1}, {"warmup_fraction": 0.1}), config(1), 15).warmup_steps == 2


def test_the_noise_of_a_float_is_no_step_of_warmup():
    """As a float, 0.07 of 100 is a little more than 7."""
    made = JobSchedule.of(spec({"epochs": 1}, {"warmup_fraction": 0.07}, seeds=8), config(1), 100)
    assert (made.warmup_steps, made.rungs) == (7, (7,))


def test_a_batch_larger_than_the_rows_affords_no_more_evaluations():
    """40 steps of 20 rows each train on 800 rows, which afford the fewest evaluations, whatever the batch size."""
    assert JobSchedule.of(spec({"epochs": 40}), config(64), 20).eval_every == 8


def test_an_evaluation_at_a_cut_is_none_of_the_trend():
    made = JobSchedule.of(spec({"epochs": 1}, {"eval_every": 10, "warmup_fraction": 0.1}, seeds=8), config(1), 100)
    assert made.course(8, 1) == Course(jobs=8, rows_trained=100, cuts=1, before=0, after=9)


def test_milestones_come_behind_the_cut():
    """The cut is after step 2 of 15, which 0.11 of the steps would be, too."""
    evaluation = {"metrics": [{"type": "rouge_l"}], "milestones": [0.11, 0.5]}
    assert JobSchedule.of(spec({"epochs": 1}, evaluation=evaluation), config(1), 15).milestones == (3, 8)


def test_max_steps_bounds_but_never_stretches():
    assert JobSchedule.of(spec({"epochs": 1, "max_steps": 5}), config(1), 100).total_steps == 5
    assert JobSchedule.of(spec({"epochs": 1, "max_steps": 500}), config(1), 100).total_steps == 100


def test_without_early_exit_there_is_no_boundary():
    assert not JobSchedule.of(spec(early_exit={"policy": "none"}), config(1), 100).has_boundary


def test_a_warmup_as_long_as_the_training_selects_nothing():
    assert not JobSchedule.of(spec(early_exit={"warmup_fraction": 1}), config(1), 100).has_boundary


def test_asha_ranks_at_rungs_ever_further_apart():
    made = JobSchedule.of(
        spec({"epochs": 1}, {"policy": "asha", "warmup_fraction": 0.02, "reduction_factor": 3}), config(1), 100
    )
    assert made.rungs == (2, 6, 18, 54)
    assert all(made.evaluates_at(step) for step in made.rungs)
    assert JobSchedule.of(spec(), config(1), 100).rungs == (30,)


def test_no_rows_no_calendar():
    with pytest.raises(ValueError, match="no rows"):
        JobSchedule.of(spec(), config(1), 0)


@given(
    rows=st.integers(1, 100_000),
    batch_size=st.integers(1, 1024),
    epochs=st.integers(1, 100),
    max_steps=st.integers(1, 10_000),
    eval_every=st.none() | st.integers(1, 10_000),
    warmup=st.floats(0.001, 1),
    policy=st.sampled_from(["alto", "alto_guarded", "asha"]),
)
def test_every_calendar_holds_together(rows, batch_size, epochs, max_steps, eval_every, warmup, policy):
    early_exit = {"eval_every": eval_every, "warmup_fraction": warmup, "policy": policy}
    made = JobSchedule.of(spec({"epochs": epochs, "max_steps": max_steps}, early_exit), config(batch_size), rows)
    assert 1 <= made.warmup_steps <= made.total_steps
    assert 1 <= made.eval_every <= made.total_steps
    assert made.has_boundary == (made.warmup_steps < made.total_steps)
    assert made.evaluations == sum(made.evaluates_at(step) for step in range(1, made.total_steps + 1))
    assert made.evaluates_at(made.total_steps)
    assert made.evaluates_at(made.eval_every)
    assert not made.has_boundary or made.evaluates_at(made.warmup_steps)
