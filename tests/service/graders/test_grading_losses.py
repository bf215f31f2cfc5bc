"""Texts are graded though couriers are killed, stop, or find room for no thread."""

import os
import signal
import subprocess
import sys
import threading
from collections import Counter

import pytest
from sqlalchemy import func, select

from service.background.reconciler import grader_courier_of
from service.graders.grader_courier import SLOTS
from service.graders.models import GradedText
from service.graders.text_claims import OF_TENANT
from service.messaging.poison_rows import GIVEN_UP, MOST_UNRECORDED
from tests.service.graders.conftest import evaluations, wrote
from tests.service.graders.grader_server import Answer, by_length
from tests.service.live_server import PATIENCE

_COURIER = """
from service.background.reconciler import grader_courier_of
from service.dependencies import Dependencies
from service.settings import Settings
grader_courier_of(Dependencies.of(Settings.load())).work_off_due()
"""


def test_a_courier_that_is_killed_leaves_texts_that_another_grades(
    tenant, placed, grader, courier, due, settings, environment_of
):
    """What was recorded is not sent again; what was in flight is, under the same trace id."""
    taken, stuck, hanging, answered = placed(), threading.Event(), threading.Semaphore(0), threading.Semaphore(20)
    texts = ["x" * length for length in range(1, 11)] * 4

    def answers(asked):
        if not answered.acquire(blocking=False) and not stuck.is_set():
            hanging.release()
            stuck.wait(PATIENCE)
        return by_length(asked)

    grader.answers = answers
    taken.report(wrote(None, *texts))
    process = subprocess.Popen([sys.executable, "-c", _COURIER], env=environment_of(settings))
    try:
        for _ in range(OF_TENANT):
            assert hanging.acquire(timeout=PATIENCE)
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    stuck.set()
    assert evaluations(tenant, taken)[0]["pending"] == {"judge": 20}
    before = len(grader.asked)
    assert courier.work_off_due() == 0  # what was in flight takes up what the tenant may have there, until its timeout
    due()
    assert courier.work_off_due() == 20
    (base,) = evaluations(tenant, taken)
    assert (base["scores"]["judge"], base["notes"], base["pending"]) == (pytest.approx(0.55), [], {})
    sent = Counter(asked["trace_id"] for asked in grader.asked)
    assert (before, len(sent), sorted(sent.values())) == (28, 40, [1] * 32 + [2] * 8)


def test_a_text_that_ends_its_process_is_given_up_and_the_others_are_graded(
    tenant, placed, grader, courier, due, settings, environment_of
):
    """Those that were in flight beside it are not taken for such ones."""
    taken, beside, killed = placed(), threading.Barrier(OF_TENANT), threading.Event()
    texts = ["poison", *("x" * length for length in range(1, 11)), "x"]

    def answers(asked):
        if not killed.is_set():
            beside.wait(PATIENCE)
        if asked["sample"]["output_text"] == "poison":
            os.kill(processes[-1].pid, signal.SIGKILL)
            killed.set()
        killed.wait(PATIENCE)
        return by_length(asked)

    grader.answers = answers
    taken.report(wrote(None, *texts))
    processes: list[subprocess.Popen[bytes]] = []
    while not processes or processes[-1].wait(2 * PATIENCE) == -signal.SIGKILL:
        assert len(processes) <= MOST_UNRECORDED
        due()
        processes.append(subprocess.Popen([sys.executable, "-c", _COURIER], env=environment_of(settings)))
    assert len(processes) == MOST_UNRECORDED + 1
    (base,) = evaluations(tenant, taken)
    assert base["scores"]["judge"] == pytest.approx(sum(len(text) for text in texts[1:]) / 10 / 11)
    assert base["pending"] == {}
    assert GIVEN_UP in base["notes"][0]


def test_a_stopped_attempt_counts_as_none(placed, courier, database, due):
    taken = placed()
    taken.report(wrote(None, "maybe"))
    for _ in range(MOST_UNRECORDED + 1):
        (claimed,) = courier.take(1).rows
        courier.release(claimed)
        due()
    with database.begin() as session:
        assert session.scalars(select(GradedText.unrecorded)).one() == 0


def test_a_process_that_dies_between_the_last_score_and_the_evaluation_loses_nothing(tenant, placed, courier, dependencies):
    taken = placed()
    taken.report(wrote(None, "maybe"))
    courier._finish = lambda grading_id: None
    assert courier.work_off_due() == 1
    assert evaluations(tenant, taken)[0]["pending"] == {"judge": 0}
    assert grader_courier_of(dependencies).work_off_due() == 0
    assert evaluations(tenant, taken)[0]["scores"]["judge"] == 0.5


def test_a_process_that_dies_as_too_many_texts_have_failed_leaves_none_to_send(tenant, placed, grader, courier, dependencies):
    taken = placed()
    grader.answers = lambda _: Answer(403)
    courier._finish = lambda grading_id: None
    taken.report(wrote(None, *("text" for _ in range(100))))
    made = courier.work_off_due()
    assert 11 <= made < 40, "nor is one sent before somebody has finished the grading"
    assert grader_courier_of(dependencies).work_off_due() == 0
    (base,) = evaluations(tenant, taken)
    assert base["notes"][0].startswith("metric 'judge' has no result: ")
    assert (base["pending"], len(grader.asked)) == ({}, made)


def test_where_there_is_room_for_no_thread_texts_are_graded_one_at_a_time(tenant, placed, courier, monkeypatch):
    taken, real = placed(), threading.Thread.start

    def start(thread):
        if thread.name == f"{courier.name} call":
            raise RuntimeError("can't start new thread")
        real(thread)

    taken.report(wrote(None, *(("maybe",) * (SLOTS + 1))))
    monkeypatch.setattr(threading.Thread, "start", start)
    assert courier.work_off_due() == SLOTS + 1
    assert evaluations(tenant, taken)[0]["scores"]["judge"] == 0.5


def test_a_stopped_courier_gives_back_what_is_in_flight(tenant, placed, grader, courier, database):
    taken, stuck, asked_once = placed(), threading.Event(), threading.Event()

    def answers(asked):
        asked_once.set()
        stuck.wait(PATIENCE)
        return by_length(asked)

    grader.answers = answers
    taken.report(wrote(None, "maybe"))
    courier.wake()
    assert asked_once.wait(PATIENCE)
    courier.close(seconds=0.0)
    with database.begin() as session:
        row = session.scalars(select(GradedText)).one()
        assert (row.held_until, row.done, row.attempts) == (None, False, 0)
        assert row.next_at <= session.scalar(select(func.clock_timestamp()))
    stuck.set()
    courier.close(seconds=PATIENCE)
    assert len(grader.asked) == 1
