"""What jobs' exits teach: sums by class, the prior behind them, and who may still pass the boundary."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract.early_exit_policy import EarlyExitPolicy
from contract.states import ExitReason, JobStatus
from service.scheduler.estimate.survival import (
    ALTO,
    CLASS_JOBS,
    NOTHING,
    OWN,
    JobLifetimes,
    ReportedProgress,
    belief,
    hazards,
    learned,
    lived,
    promotion,
)

POLICY = EarlyExitPolicy()
JOB = ReportedProgress(JobStatus.PENDING, 0, 1000, 100, 4, False)


@pytest.mark.parametrize(
    ("job", "seen"),
    [
        (JOB, JobLifetimes()),
        (replace(JOB, status=JobStatus.WARMUP, step=50), JobLifetimes(0, 0.5)),
        (replace(JOB, status=JobStatus.EXITED, step=50, exit_reason=ExitReason.DIVERGING), JobLifetimes(1, 0.5)),
        (replace(JOB, status=JobStatus.EXITED, step=100, exit_reason=ExitReason.UNDERPERFORMING), JobLifetimes(0, 1)),
        (replace(JOB, status=JobStatus.TRAINING, step=550, promoted=True), JobLifetimes(0, 1, 0, 0.5)),
        (replace(JOB, status=JobStatus.EXITED, step=550, promoted=True), JobLifetimes(0, 1, 1, 0.5)),
        (replace(JOB, status=JobStatus.COMPLETED, step=1000, promoted=True), JobLifetimes(0, 1, 0, 1)),
    ],
)  # fmt: skip
def test_what_one_job_has_lived(job: ReportedProgress, seen: JobLifetimes) -> None:
    assert lived([job]) == seen


def test_a_class_counts_as_much_as_some_jobs_and_own_exits_more() -> None:
    many = JobLifetimes(100, 1000, 100, 1000)
    assert belief(POLICY, many, NOTHING).warm_lived == pytest.approx(ALTO.warm_lived + CLASS_JOBS)
    assert belief(POLICY, NOTHING, JobLifetimes(1, 1)).warm_exits == ALTO.warm_exits + OWN


def test_a_class_that_changes_its_ways_is_believed_in_the_end() -> None:
    seen = JobLifetimes(200, 200, 0, 200)
    for _ in range(200):
        seen = learned(seen, JobLifetimes(0, 16, 0, 4))
    assert seen.warm_exits / seen.warm_lived < 0.1


@given(st.floats(1, 200), st.floats(0.5, 200))
def test_hazards_rise_and_average_to_their_mean(exits: float, phases: float) -> None:
    found = hazards(exits, phases)
    assert list(found) == sorted(found)
    assert math.fsum(found) / len(found) == pytest.approx(exits / phases, rel=0.12)


def test_who_passes() -> None:
    out = replace(JOB, status=JobStatus.EXITED, step=100, exit_reason=ExitReason.UNDERPERFORMING)
    kept = replace(JOB, status=JobStatus.TRAINING, step=500, promoted=True)
    assert promotion([JOB] * 16, POLICY) == 0.25
    assert promotion([JOB] * 5, POLICY) == pytest.approx(2 / 5)
    assert promotion([kept, kept, out, out, JOB, JOB, JOB, JOB], POLICY) == 0
    assert promotion([kept, out, out, out, out, out, out, JOB], POLICY) == 1
    assert promotion([JOB] * 3, EarlyExitPolicy(policy="none")) == 1
