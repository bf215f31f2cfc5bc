"""An executor for which the system starts no more threads: what trains there goes on."""

import logging
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.worker.conftest import Lacking
from tests.worker.corpus import rows
from tests.worker.fleet import Fleet
from tests.worker.inside import Inside
from worker.boot_clock import boot_now
from worker.executor.background_worker import BackgroundWorker
from worker.executor.training_loop import Executor
from worker.pipe_messages import Attach, ExecutorProgress, PlacementEnded

JOB = {"learning_rate": [3e-3], "rank": [8], "batch_size": [4]}
SPEC = {"early_exit": {"policy": "none", "eval_every": 4}, "training": {"max_steps": 20}}
PATIENCE = 60.0


def test_work_waits_for_a_thread_that_is_free_and_more_start_again(lacking: Lacking, caplog: pytest.LogCaptureFixture) -> None:
    worker, begun, ends = BackgroundWorker("few", at_once=None), threading.Semaphore(0), threading.Event()

    def work() -> None:
        begun.release()
        ends.wait(PATIENCE)

    worker.submit(work)
    assert begun.acquire(timeout=PATIENCE)
    lacking.add("few")
    with caplog.at_level(logging.WARNING, "worker.executor"):
        worker.submit(work)
    assert "few: work waits for a thread that is free" in caplog.text
    assert not begun.acquire(blocking=False)
    lacking.clear()
    worker.submit(work)
    assert begun.acquire(timeout=PATIENCE)
    assert begun.acquire(timeout=PATIENCE), "what waited has a thread too"
    ends.set()


def test_what_waited_runs_once_a_thread_is_free(lacking: Lacking) -> None:
    worker, first, done = BackgroundWorker("few", at_once=None), threading.Event(), threading.Event()
    lacking.add("few")
    worker.submit(partial(first.wait, PATIENCE))
    worker.submit(done.set)
    first.set()
    assert done.wait(PATIENCE)


def test_a_placement_whose_first_weights_no_thread_draws_trains_all_the_same(
    fleet: Fleet, placing: Callable[..., Any], tmp_path: Path, lacking: Lacking
) -> None:
    first, joiner = placing(JOB, **SPEC), placing(JOB, rows(30, seed=3), **SPEC)

    def after() -> bool:
        lacking.add("first weights")
        return True

    reported = Inside(fleet, tmp_path).run(first, joining=[joiner], after=after)
    assert [[event.kind for event in each.ended.values()] for each in reported] == [["job_completed"]] * 2


def test_two_that_come_together_are_prepared_by_one_thread(
    fleet: Fleet, placing: Callable[..., Any], tmp_path: Path, lacking: Lacking
) -> None:
    placements = [placing(JOB, **SPEC), placing(JOB, rows(30, seed=3), **SPEC)]
    reported = Inside(fleet, tmp_path).run(*placements, prepare=lambda executor: lacking.add("preparations"))
    assert [[event.kind for event in each.ended.values()] for each in reported] == [["job_completed"]] * 2


def test_a_placement_that_cannot_be_reported_is_given_back_and_the_others_go_on(
    fleet: Fleet, placing: Callable[..., Any], tmp_path: Path, lacking: Lacking
) -> None:
    first, joiner = placing(JOB, **SPEC), placing(JOB, rows(30, seed=3), **SPEC)

    def after() -> bool:
        lacking.add(f"reports of {joiner.placement_id}")
        return True

    inside = Inside(fleet, tmp_path)
    (kept, _) = inside.run(first, joining=[joiner], after=after)
    assert [event.kind for event in kept.ended.values()] == ["job_completed"]
    ends = {ended.placement_id: (ended.lost, ended.detail) for ended in inside.ended}
    assert ends[first.placement_id] == (False, "done")
    lost, detail = ends[joiner.placement_id]
    assert lost
    assert detail == "the system starts no thread for its reports: can't start new thread"


def test_a_placement_whose_base_is_not_loaded_is_given_back_and_the_next_trains(
    fleet: Fleet, placing: Callable[..., Any], tmp_path: Path, lacking: Lacking
) -> None:
    first, second = placing(JOB, **SPEC), placing(JOB, rows(30, seed=3), **SPEC)
    inside = Inside(fleet, tmp_path)

    def prepare(executor: Executor) -> None:
        lacking.add("revision")

        def told(news: ExecutorProgress | PlacementEnded) -> None:
            if isinstance(news, PlacementEnded) and lacking:
                lacking.clear()
                executor.handle_command(Attach(placement=second, deadline=boot_now() + second.lease_seconds))

        inside.on_news = told

    (_, trained) = inside.run(first, joining=[second], after=lambda: False, prepare=prepare)
    assert [event.kind for event in trained.ended.values()] == ["job_completed"]
    ends = [(ended.placement_id, ended.lost) for ended in inside.ended]
    assert ends == [(first.placement_id, True), (second.placement_id, False)]
    assert "can't start new thread" in inside.ended[0].detail
