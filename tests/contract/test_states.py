"""The transition tables say what the state machines of ARCHITECTURE.md say, and nothing leaves an end."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract.states import (
    JOB_REWINDS,
    JOB_TERMINAL,
    JOB_TRANSITIONS,
    TASK_TERMINAL,
    TASK_TRANSITIONS,
    IllegalTransition,
    JobStatus,
    TaskStatus,
    check_job,
    check_task,
)

T, J = TaskStatus, JobStatus

TASK_WALK = [T.VALIDATING, T.QUEUED, T.RUNNING, T.SUCCEEDED]
JOB_WALK = [J.PENDING, J.WARMUP, J.PARKED, J.TRAINING, J.COMPLETED]


def test_every_status_has_its_row():
    assert set(TASK_TRANSITIONS) == set(TaskStatus)
    assert set(JOB_TRANSITIONS) == set(JOB_REWINDS) == set(JobStatus)


def test_the_ends():
    assert {T.SUCCEEDED, T.FAILED, T.CANCELLED} == TASK_TERMINAL
    assert {J.COMPLETED, J.EXITED, J.FAILED, J.CANCELLED} == JOB_TERMINAL


def test_the_walks_are_open():
    for before, after in pairwise(TASK_WALK):
        assert check_task(before, after) is after
    for before, after in pairwise(JOB_WALK):
        assert check_job(before, after) is after


@given(st.sampled_from(TaskStatus), st.sampled_from(TaskStatus))
def test_a_task_moves_as_its_table_says_or_not_at_all(before, after):
    if after in TASK_TRANSITIONS[before]:
        assert check_task(before, after) is after
    else:
        with pytest.raises(IllegalTransition, match=f"{before.value}.*{after.value}"):
            check_task(before, after)


@given(st.sampled_from(JobStatus), st.sampled_from(JobStatus))
def test_a_job_moves_as_its_table_says_or_not_at_all(before, after):
    if after in JOB_TRANSITIONS[before]:
        assert check_job(before, after) is after
    else:
        with pytest.raises(IllegalTransition, match=f"{before.value}.*{after.value}"):
            check_job(before, after)


def test_whatever_has_not_ended_can_be_cancelled():
    assert all(T.CANCELLED in TASK_TRANSITIONS[status] for status in set(T) - TASK_TERMINAL)
    assert all(J.CANCELLED in JOB_TRANSITIONS[status] for status in set(J) - JOB_TERMINAL)


def test_only_a_running_task_succeeds_and_only_what_trained_completes():
    assert {status for status in T if T.SUCCEEDED in TASK_TRANSITIONS[status]} == {T.RUNNING}
    assert {status for status in J if J.COMPLETED in JOB_TRANSITIONS[status]} == {J.WARMUP, J.TRAINING}


def test_a_rewind_goes_back_or_nowhere_and_never_from_an_end():
    order = JOB_WALK[:-1]
    for status, back in JOB_REWINDS.items():
        if status in JOB_TERMINAL:
            assert back == frozenset()
        else:
            assert all(order.index(to) <= order.index(status) for to in back)
            assert {J.PENDING, status} <= back
