"""Simulated lives go through the real early exit, their walks add up, and the estimator holds what it states on them."""

from random import Random
from statistics import fmean

import pytest

from benchmarks.simulator.calibration import calibrate
from benchmarks.simulator.job_outcomes import draw_lives, draw_nature, progress, promoted, walk
from contract.early_exit_policy import EarlyExitPolicy
from contract.states import JOB_TERMINAL, ExitReason
from service.scheduler.estimate.task_duration import INSIDE

POLICY = EarlyExitPolicy()


def test_what_is_saved_lies_where_alto_measured_it() -> None:
    draw = Random(1)
    lives = [life for _ in range(25) for life in draw_lives(4000, 2, 16, draw_nature(draw), POLICY, draw)]
    trained, whole = (sum(getattr(life, name) * life.batch_size for life in lives) for name in ("end", "total_steps"))
    assert 0.7 < 1 - trained / whole < 0.88
    assert {life.reason for life in lives} == {None, *ExitReason}


def test_without_early_exit_everybody_trains_to_the_end() -> None:
    lives = draw_lives(500, 1, 8, draw_nature(Random(2)), EarlyExitPolicy(policy="none"), Random(2))
    assert all(life.end == life.total_steps and life.reason is None for life in lives)


def test_a_walk_trains_every_step_once_and_ends_with_the_last_job() -> None:
    draw = Random(3)
    lives = draw_lives(900, 2, 16, draw_nature(draw), POLICY, draw)
    segments = walk(lives, 100.0, lambda tokens: 1.0)
    trained = sum((segment.last - segment.first) * segment.tokens for segment in segments)
    assert trained == pytest.approx(sum(life.end * life.batch_size * 100.0 for life in lives))
    whole = sum(segment.seconds for segment in segments)
    assert all(job.status in JOB_TERMINAL for job in progress(lives, segments, whole + 1))
    for job, life in zip(progress(lives, segments, whole + 1), lives, strict=True):
        assert (job.step, job.exit_reason, job.promoted) == (life.end, life.reason, promoted(life))
    steps = [[job.step for job in progress(lives, segments, part * whole)] for part in (0.1, 0.4, 0.9)]
    assert all(a <= b <= c for a, b, c in zip(*steps, strict=True))


def test_the_stated_interval_holds_about_as_often_as_it_says() -> None:
    seen = list(calibrate(40, seed=7))
    assert fmean(foretold.inside for foretold in seen) > INSIDE - 0.15
