"""The bound on what evaluations cost, for data sets of any size, counted step by step."""

from hypothesis import given
from hypothesis import strategies as st

from contract.evaluation_plan import LEAST_FULL, LEAST_TREND, evaluations_for
from contract.job_schedule import JobSchedule
from contract.task_spec import TaskSpec
from contract.validation_parts import validation_parts


def spec(rates: int, sizes: list[int], epochs: int, **early_exit: object) -> TaskSpec:
    space = {"learning_rate": [1e-5 * (n + 1) for n in range(rates)], "rank": [8], "batch_size": sizes}
    return TaskSpec.model_validate(
        {
            "base_model": "b",
            "dataset": {"file_id": "f"},
            "search_space": space,
            "training": {"epochs": epochs},
            "early_exit": early_exit,
        }
    )


def rows_read(made: TaskSpec, train: int, full_rows: int, trend: int) -> tuple[int, int]:
    """(validation rows that the search reads, training rows that all jobs would take), if as many jobs as may pass the cut
    do, and train to their end."""
    read, whole, jobs = full_rows, 0, made.jobs()  # full_rows: the base
    _, most = made.early_exit.survivors(len(jobs))
    schedules = [JobSchedule.of(made, config, train) for config in jobs]
    for place, schedule in enumerate(sorted(schedules, key=lambda one: -one.evaluations)):
        ends = schedule.total_steps if place < most or not schedule.has_boundary else schedule.rungs[0]
        steps = [step for step in range(1, ends + 1) if schedule.evaluates_at(step)]
        read += sum(full_rows if step in schedule.rungs and schedule.full_at_rungs else trend for step in steps)
        read += full_rows if ends == schedule.total_steps else 0
    for config, schedule in zip(jobs, schedules, strict=True):
        whole += schedule.total_steps * min(config.batch_size, train)
    return read, whole


@given(
    rows=st.integers(5, 4000),
    rates=st.integers(1, 12),
    size=st.sampled_from([1, 2, 4, 8]),
    epochs=st.integers(1, 5),
    policy=st.sampled_from(["alto", "alto_guarded", "none"]),
)
def test_evaluations_take_at_most_their_share(rows, rates, size, epochs, policy):
    """For every size, search and policy: within the share, or as little as may be read where that is more."""
    made = spec(rates, [size], epochs, policy=policy)
    validation = min(512, round(rows * 0.2))
    train = rows - validation
    parts = validation_parts(made, train, validation)
    read, whole = rows_read(made, train, parts.full, parts.trend)
    least, _ = rows_read(made, train, min(validation, LEAST_FULL), min(validation, LEAST_TREND))
    assert read <= max(made.early_exit.max_evaluation_share * whole, least)
    assert min(validation, LEAST_TREND) <= parts.trend <= parts.full <= validation
    assert parts.full >= min(validation, LEAST_FULL)


def test_a_search_of_1000_rows_reads_a_seventh_of_its_tokens():
    """Every evaluation used to read 96 of 100 held-out rows: 1.3 times what a search trained on with 200 rows."""
    made = spec(15, [1, 2, 4, 8], 3)
    for rows in (200, 500, 1000, 3300):
        validation = min(512, round(rows * 0.2))
        parts = validation_parts(made, rows - validation, validation)
        read, whole = rows_read(made, rows - validation, parts.full, parts.trend)
        assert 0.05 * whole < read <= 0.15 * whole


def test_a_fifth_of_the_rows_is_judged_on_by_default():
    """With 3 epochs, whatever the size, up to 512 rows; and the trend reads a few of them."""
    made = spec(15, [1, 2, 4, 8], 3)
    for rows in (300, 1000, 2000):
        parts = validation_parts(made, round(rows * 0.8), round(rows * 0.2))
        assert parts.full >= 0.17 * rows
        assert 8 <= parts.trend <= 32
    assert validation_parts(made, 9488, 512).full == 512


def test_without_a_share_each_evaluation_reads_all_rows():
    parts = validation_parts(spec(3, [4], 3, max_evaluation_share=None), 80, 20)
    assert (parts.full, parts.trend) == (20, 20)
    assert JobSchedule.of(spec(3, [1], 3, max_evaluation_share=None), spec(3, [1], 3).jobs()[0], 80).evaluations == 30


def test_longer_validation_rows_are_fewer():
    made = spec(15, [4], 3)
    plain, longer = (validation_parts(made, 800, 200, row_cost=cost) for cost in (1.0, 2.0))
    assert 0.4 * plain.full < longer.full < 0.6 * plain.full
    assert 0.3 * plain.trend < longer.trend < 0.7 * plain.trend


def test_the_fewer_jobs_pass_the_cut_the_more_often_each_is_evaluated():
    """A quarter of 0.15 of 3,200 rows is 120 rows for the trend, of which an evaluation is to read 12."""
    assert evaluations_for(0.15, 1.0, 0.1, 3200) == 10
    assert evaluations_for(0.15, 0.25, 0.1, 3200) == 30  # a third of the steps are run on average: 0.1 + 0.25 * 0.9
    assert evaluations_for(0.15, 0.5, 0.1, 3200) == 18
