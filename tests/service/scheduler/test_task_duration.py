"""What is still to come of a task: tokens, seconds and the interval, from what jobs have lived and how fast steps went."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract.early_exit_policy import EarlyExitPolicy
from contract.states import ExitReason, JobStatus
from service.scheduler.core.gpu_types import hardware
from service.scheduler.estimate.survival import JobLifetimes, ReportedProgress
from service.scheduler.estimate.task_duration import SHORTEST_SECONDS, TaskWork, estimate, tokens_per_row
from service.scheduler.estimate.text_tokens import TextWork
from service.scheduler.estimate.throughput import ThroughputModel, key_of, measured

ALTO, NONE = EarlyExitPolicy(), EarlyExitPolicy(policy="none")
MODEL = ThroughputModel(8_000_000_000, 16_000_000_000, hardware("NVIDIA H100 80GB HBM3"))
NEW = ReportedProgress(JobStatus.PENDING, 0, 1000, 50, 4, False)
EXITED = replace(NEW, status=JobStatus.EXITED, step=30, exit_reason=ExitReason.DIVERGING)
OUT = replace(NEW, status=JobStatus.EXITED, step=50, exit_reason=ExitReason.UNDERPERFORMING)
KEPT = replace(NEW, status=JobStatus.TRAINING, step=400, promoted=True)


def work(*jobs: ReportedProgress, policy: EarlyExitPolicy = ALTO, **more) -> TaskWork:
    return TaskWork(jobs, policy, 500.0, **more)


def whole(*jobs: ReportedProgress) -> float:
    return sum(job.total_steps * job.batch_size * 500.0 for job in jobs)


def test_before_anything_is_known_early_exit_saves_what_alto_measured() -> None:
    jobs = (NEW,) * 16
    assert 0.72 <= 1 - estimate(work(*jobs), MODEL, 1).tokens / whole(*jobs) <= 0.83


def test_without_early_exit_all_tokens_are_trained() -> None:
    found = estimate(work(NEW, policy=NONE), MODEL, 1)
    assert found.tokens == pytest.approx(whole(NEW), rel=0.02)


def test_one_of_few_jobs_passes_for_certain() -> None:
    """Of four jobs one is kept: the task lasts as long as that one, not as the average."""
    four, one = estimate(work(*(NEW,) * 4), MODEL, 1), estimate(work(NEW), MODEL, 1)
    assert four.seconds > 0.9 * one.seconds


def test_a_class_whose_jobs_live_on_is_expected_to_take_longer() -> None:
    dies, lives = JobLifetimes(10, 12, 10, 6), JobLifetimes(0.1, 12, 0.1, 12)
    jobs = (NEW,) * 16
    assert estimate(work(*jobs, of_class=dies), MODEL, 1).tokens < estimate(work(*jobs, of_class=lives), MODEL, 1).tokens


def test_its_own_exits_correct_a_running_task() -> None:
    steady = estimate(work(*(KEPT,) * 4), MODEL, 1)
    ended = replace(KEPT, status=JobStatus.EXITED, exit_reason=ExitReason.OVERFITTING)
    shaky = estimate(work(*(KEPT,) * 4, *(ended,) * 4), MODEL, 1)
    assert shaky.tokens < 0.9 * steady.tokens


def test_places_already_given_are_not_given_again() -> None:
    waiting = replace(NEW, status=JobStatus.PARKED, step=50)
    full = estimate(work(*(KEPT,) * 2, *(OUT,) * 3, *(waiting,) * 3), MODEL, 1)
    assert full.tokens == pytest.approx(estimate(work(*(KEPT,) * 2, *(OUT,) * 6), MODEL, 1).tokens, rel=0.02)


def test_nothing_left_takes_no_time() -> None:
    found = estimate(work(replace(NEW, status=JobStatus.COMPLETED, step=1000), OUT), MODEL, 1)
    assert (found.tokens, found.seconds) == (0, SHORTEST_SECONDS)


def test_evaluations_cost_time_and_train_nothing() -> None:
    plain, checked = (estimate(work(NEW, policy=NONE, validation_rows=rows), MODEL, 1) for rows in (0, 64))
    assert checked.tokens == plain.tokens
    assert checked.seconds > 1.2 * plain.seconds


def test_a_measurement_narrows_the_interval_and_moves_the_mean() -> None:
    key, profile = key_of("m", "bf16", "h", 2000), None
    for _ in range(5):
        profile = measured(profile, 2000, 2.0)
    guess, known = (estimate(work(NEW, policy=NONE), m, 1) for m in (MODEL, replace(MODEL, profiles=((key, profile),))))
    assert known.seconds == pytest.approx(2000, rel=0.05)
    assert known.high / known.low < 1.5 < guess.high / guess.low


def test_twice_the_gpus_help_many_jobs_and_not_a_single_one() -> None:
    many = [estimate(work(*(replace(NEW, batch_size=16),) * 16, policy=NONE), MODEL, gpus).seconds for gpus in (1, 2)]
    one = [estimate(work(NEW, policy=NONE), MODEL, gpus).seconds for gpus in (1, 2)]
    assert many[1] < 0.6 * many[0]
    assert one[1] == one[0]
    three, four = (estimate(work(*(replace(NEW, batch_size=16),) * n, policy=NONE), MODEL, 2).seconds for n in (3, 4))
    assert three == pytest.approx(four, rel=0.05), "a step lasts as long as that of the GPU with two jobs"


@given(
    st.lists(
        st.builds(
            lambda status, total, part, warm, batch, promoted: ReportedProgress(
                status, int(part * total), total, max(1, int(warm * total)), batch, promoted
            ),
            st.sampled_from((JobStatus.PENDING, JobStatus.WARMUP, JobStatus.TRAINING, JobStatus.COMPLETED)),
            st.integers(1, 5000), st.floats(0, 1), st.floats(0, 1), st.integers(1, 16), st.booleans(),
        ),
        max_size=20,
    ),
    st.sampled_from((1, 2, 8)),
)  # fmt: skip
def test_never_more_than_what_is_left_and_the_mean_is_no_stranger_to_its_interval(
    jobs: list[ReportedProgress], gpus: int
) -> None:
    found = estimate(work(*jobs), MODEL, gpus)
    left = sum((job.total_steps - job.step) * job.batch_size for job in jobs if job.status != JobStatus.COMPLETED) * 500.0
    assert 0 <= found.tokens <= 1.001 * left
    assert SHORTEST_SECONDS <= found.low <= found.high
    assert found.seconds <= 1.5 * found.high + SHORTEST_SECONDS


def test_tokens_per_row() -> None:
    assert tokens_per_row(file_bytes=35_000, rows=100, max_seq_len=1024) == 100
    assert tokens_per_row(file_bytes=35_000_000, rows=100, max_seq_len=1024) == 1024
    assert tokens_per_row(file_bytes=35_000_000, rows=100, max_seq_len=1024, sequences=2) == 2048, "of a pair, each is cut"


def test_texts_take_the_time_that_is_left_of_them() -> None:
    texts = TextWork(evaluations=5, prompts=512, read=200, written=100)
    plain, more = estimate(work(NEW, policy=NONE), MODEL, 1), estimate(work(NEW, policy=NONE, texts=texts), MODEL, 1)
    assert more.text_seconds > 0
    assert [more.seconds - plain.seconds, more.high - plain.high] == pytest.approx([more.text_seconds] * 2)
    assert 0 < more.low - plain.low < more.text_seconds, "prompts are read, texts may be short"
    assert more.tokens == plain.tokens, "none of them is trained"
    longer = estimate(work(NEW, policy=NONE, texts=replace(texts, written=200)), MODEL, 1)
    assert 1.2 < longer.text_seconds / more.text_seconds < 2
    trained = replace(NEW, status=JobStatus.TRAINING, step=NEW.total_steps, promoted=True)
    left = estimate(work(trained, texts=replace(texts, evaluations=1)), MODEL, 1)
    assert [left.seconds, left.text_seconds] == pytest.approx([more.text_seconds / 5] * 2), "it has trained, and is evaluated"
    assert estimate(work(NEW, policy=NONE, texts=texts), MODEL, 2).text_seconds == more.text_seconds, "one GPU writes"
    slow = replace(MODEL, profiles=((key_of("b", "bf16", "g", 256), measured(None, 256, 1.0)),))
    assert estimate(work(NEW, policy=NONE, texts=texts), slow, 1).text_seconds > 10 * more.text_seconds, "as steps are"
