"""Expected work and durations: what early exit is expected to save, and what a measurement changes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract.spec import EarlyExitPolicy
from contract.states import JobStatus
from service.scheduler.estimate import (
    JobProgress,
    assumed_rate,
    expected_steps,
    expected_tokens,
    measured_rate,
    seconds_for,
    tokens_per_row,
)

ALTO = EarlyExitPolicy()
NONE = EarlyExitPolicy(policy="none")


def job(status=JobStatus.PENDING, step=0, total=1000, warmup=50, batch=4, promoted=False):
    return JobProgress(status, step, total, warmup, batch, promoted)


@pytest.mark.parametrize(
    ("progress", "policy", "steps"),
    [
        (job(), NONE, 1000),
        (job(), ALTO, 50 + 0.25 * 950),  # 71 % saved before anything is known
        (job(JobStatus.WARMUP, 20), ALTO, 30 + 0.25 * 950),
        (job(JobStatus.PARKED, 50), ALTO, 0.25 * 950),
        (job(JobStatus.TRAINING, 300, promoted=True), ALTO, 700),
        (job(JobStatus.PENDING, 0, promoted=True), ALTO, 1000),  # rewound to its start: it will not be ranked again
        (job(JobStatus.EXITED, 50), ALTO, 0),
        (job(JobStatus.COMPLETED, 1000), ALTO, 0),
    ],
)
def test_expected_steps(progress, policy, steps):
    assert expected_steps(progress, policy) == pytest.approx(steps)


@given(st.integers(0, 1000), st.integers(1, 1000), st.booleans())
def test_never_more_than_what_is_left(step, warmup, promoted):
    progress = job(JobStatus.WARMUP, step, 1000, min(warmup, 1000), promoted=promoted)
    assert 0 <= expected_steps(progress, ALTO) <= 1000 - step or step > 1000


def test_tokens_and_seconds():
    assert expected_tokens([job(total=10, warmup=1), job(JobStatus.FAILED)], NONE, 50.0) == 10 * 4 * 50
    assert tokens_per_row(file_bytes=35_000, rows=100, max_seq_len=1024) == 100
    assert tokens_per_row(file_bytes=35_000_000, rows=100, max_seq_len=1024) == 1024
    assert seconds_for(100_000, rate=500, gpus=1) == 205
    assert seconds_for(100_000, rate=500, gpus=4) == 55
    assert seconds_for(0, rate=500, gpus=1) >= 1


def test_a_measurement_replaces_the_assumption_and_later_ones_move_it():
    assert assumed_rate("cpu", 7_000_000) < assumed_rate("NVIDIA H100", 7_000_000)
    first = measured_rate(None, tokens=1000, seconds=2.0, gpus=2)
    assert first == 250
    assert first < measured_rate(first, tokens=1000, seconds=1.0, gpus=2) < 500
    assert measured_rate(first, tokens=0, seconds=1.0, gpus=1) == first
