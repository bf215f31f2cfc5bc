"""Files are read in a thread of their own: plans and recovery do not wait for it, and what it leaves is taken up by others."""

import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta

import pytest
from rq.exceptions import StopRequested
from sqlalchemy import select, text, update

from service.background import queue_worker, reconciler
from service.database.engine import clock
from service.dependencies import Dependencies
from service.fleet.models import Node, Placement
from service.messaging.queue import NamedQueueJob, QueueJob
from service.tasks.models import Task, TaskEvent
from service.tasks.submission.stored_file_check import validate_due
from service.tasks.submission.validator import Validator
from tests.service.live_server import PATIENCE, until


class StandsStill:
    """Storage that gives no file, and lists none, before `go_on`."""

    def __init__(self, storage) -> None:
        self._storage, self.asked, self.go_on = storage, threading.Event(), threading.Event()

    def open(self, sha256: str):
        self._wait()
        return self._storage.open(sha256)

    def keys(self):
        self._wait()
        return self._storage.keys()

    def _wait(self) -> None:
        self.asked.set()
        assert self.go_on.wait(PATIENCE)

    def __getattr__(self, name: str):
        return getattr(self._storage, name)


@pytest.fixture
def still(dependencies):
    made = StandsStill(dependencies.storage)
    yield made
    made.go_on.set()


@pytest.fixture
def slow(dependencies, still, monkeypatch) -> Dependencies:
    """Those of a process whose storage stands still, and that takes for missed what is a moment old."""
    own = replace(dependencies, storage=still, settings=dependencies.settings.model_copy(update={"reconcile_seconds": 0.05}))
    monkeypatch.setattr(Dependencies, "of", lambda _: own)
    return own


@pytest.fixture
def handlers_kept():
    kept = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in kept.items():
        signal.signal(number, handler)


@pytest.fixture
def status_of(database):
    def read(task_id: str) -> str:
        with database.begin() as session:
            return session.get_one(Task, task_id).status

    return read


def test_a_node_is_given_up_and_a_lease_ends_while_a_file_is_read(
    database, slow, still, tenant, new_node, plan, status_of, handlers_kept
):
    nodes, tasks = [new_node(), new_node()], [tenant.task()["id"] for _ in range(2)]
    plan()
    silent, _ = nodes
    new = tenant.task()["id"]

    def ended() -> set[str]:
        with database.begin() as session:
            return set(session.scalars(select(Placement.task_id).where(Placement.ended_at.is_not(None))))

    def lose_both() -> None:
        try:
            assert still.asked.wait(PATIENCE)
            with database.begin() as session:
                past = clock(session) - timedelta(hours=1)
                session.execute(update(Node).where(Node.id == silent.id).values(heartbeat_at=past))
                session.execute(update(Placement).where(Placement.node_id != silent.id).values(lease_until=past))
            until(lambda: ended() == set(tasks))
            assert status_of(new) == "validating"
            still.go_on.set()
            until(lambda: status_of(new) != "validating")
        finally:
            still.go_on.set()
            signal.raise_signal(signal.SIGTERM)

    with ThreadPoolExecutor(1) as beside:
        lost = beside.submit(lose_both)
        reconciler.run(slow.settings)
        lost.result()


@pytest.mark.parametrize("slow_job", [QueueJob.VALIDATE, QueueJob.SWEEP])
def test_the_queue_worker_plans_while_a_file_is_read_or_storage_is_swept(
    slow, still, dependencies, tenant, new_node, status_of, handlers_kept, monkeypatch, slow_job
):
    new_node()
    ready = tenant.task()["id"]
    validate_due(dependencies.db, dependencies.storage, dependencies.queue)
    new, seen = tenant.task()["id"], []

    class Asked(queue_worker._Worker):
        def work(self, *_: object, **__: object) -> bool:
            NamedQueueJob.work[slow_job]()
            assert still.asked.wait(PATIENCE)
            NamedQueueJob.work[QueueJob.REPLAN]()
            seen.extend((still.go_on.is_set(), status_of(ready), status_of(new)))
            still.go_on.set()
            signal.raise_signal(signal.SIGTERM)
            raise StopRequested

    monkeypatch.setattr(queue_worker, "_Worker", Asked)
    queue_worker.run_worker(slow.settings)
    assert seen == [False, "running", "validating"]


def test_a_validator_that_is_woken_again_and_one_beside_it_validate_nothing_twice(
    database, slow, still, dependencies, tenant, nothing_left, status_of
):
    task, validator = tenant.task()["id"], Validator(slow)
    validator.wake()
    assert still.asked.wait(PATIENCE)
    validator.wake()
    assert Validator(dependencies).run_due() == 0
    assert status_of(task) == "validating"
    still.go_on.set()
    until(lambda: status_of(task) == "queued")
    validator.close(PATIENCE)
    with database.begin() as session:
        told = session.scalars(select(TaskEvent).where(TaskEvent.task_id == task).order_by(TaskEvent.number))
        assert [event.data["status"] for event in told] == ["validating", "queued"]


def test_a_stop_waits_for_no_storage_and_leaves_the_task_to_others(slow, still, dependencies, tenant, nothing_left, status_of):
    task, validator = tenant.task()["id"], Validator(slow)
    validator.wake()
    assert still.asked.wait(PATIENCE)
    validator.close(0.0)
    assert validator._thread.is_alive()
    still.go_on.set()
    validator.close(PATIENCE)
    assert not validator._thread.is_alive()
    assert status_of(task) == "validating"
    validator.wake()
    assert not validator._thread.is_alive(), "it was stopped"
    assert Validator(dependencies).run_due() == 1


def test_a_claim_ends_with_the_connection_of_its_process(database, slow, still, dependencies, tenant, nothing_left, status_of):
    task, validator = tenant.task()["id"], Validator(slow)
    validator.wake()
    assert still.asked.wait(PATIENCE)
    assert Validator(dependencies).run_due() == 0
    held = "pid IN (SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND database = d.oid)"
    with database.begin() as session:
        end = f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity a JOIN pg_database d ON d.oid = a.datid WHERE {held}"
        assert session.scalars(text(f"{end} AND d.datname = current_database()")).all() == [True]
    until(lambda: Validator(dependencies).run_due() == 1)
    still.go_on.set()
    validator.close(PATIENCE)
    assert status_of(task) == "queued"
