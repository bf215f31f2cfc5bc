"""The queue worker as a process of its own: only the closed set runs, whatever Redis holds, and Redis may come and go."""

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
import redis
import rq
from rq import worker_registration
from rq.command import send_shutdown_command
from rq.job import Callback
from rq.serializers import DefaultSerializer, JSONSerializer
from rq.webhook import Webhook
from sqlalchemy import func, select

from service.messaging.plan_requests import request_plan
from service.messaging.queue import QUEUE_NAME, pending_key
from service.scheduler.models import PlanRequest
from tests.service.live_server import PATIENCE


def until(true: Callable[[], bool], seconds: float = PATIENCE) -> None:
    """Wait for another process to make it so."""
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "it did not come to be"
        time.sleep(0.02)


class Worker:
    """A queue worker's process."""

    def __init__(self, environment: dict[str, str], log: Path) -> None:
        self._log = log
        with log.open("wb") as out:
            command = [sys.executable, "-m", "service", "queue"]
            self.process = subprocess.Popen(command, env=environment, stdout=out, stderr=subprocess.STDOUT)

    def said(self) -> str:
        return self._log.read_text()

    def end(self, number: int = signal.SIGKILL) -> int:
        self.process.send_signal(number)
        return self.process.wait(PATIENCE)


@pytest.fixture(scope="module")
def worker(settings, environment_of, tmp_path_factory) -> Iterator[Worker]:
    """A worker that no test may stop."""
    made = Worker(environment_of(settings), tmp_path_factory.mktemp("worker") / "log")
    yield made
    assert made.end(signal.SIGTERM) == 0


@pytest.fixture
def own_worker(settings, environment_of, tmp_path) -> Iterator[Worker]:
    """A worker of this test alone."""
    made = Worker(environment_of(settings), tmp_path / "log")
    until(lambda: "queue worker started" in made.said())
    yield made
    made.end()


@pytest.fixture
def works(dependencies, nothing_left):
    """Ask for a plan and see it done: the worker is there and well."""

    def ask(worker: Worker) -> None:
        with dependencies.db.begin() as session:
            request_plan(session, dependencies.queue, "test")

        def done() -> bool:
            assert worker.process.poll() is None, worker.said()
            with dependencies.db.begin() as session:
                return session.scalar(select(func.count(PlanRequest.id))) == 0

        until(done)

    return ask


class Listener:
    """A web server that notes who calls."""

    def __init__(self) -> None:
        calls = self.calls = []

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                calls.append(self.path)
                self.send_response(200)
                self.end_headers()

            do_POST = do_GET

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture
def listener() -> Iterator[Listener]:
    made = Listener()
    yield made
    made.server.shutdown()
    made.server.server_close()


def test_what_is_asked_once_the_work_has_begun_wakes_the_worker_anew(stack, works, worker):
    works(worker)
    assert not redis.Redis.from_url(stack.redis_url).exists(pending_key("replan"))
    works(worker)


def test_forged_queue_jobs_run_nothing_and_the_worker_goes_on(stack, works, worker, tmp_path, listener):
    works(worker)
    before = len(worker.said())
    connection = redis.Redis.from_url(stack.redis_url)
    written = tmp_path / "written"
    forger = rq.Queue(QUEUE_NAME, connection=connection, serializer=JSONSerializer)
    pickler = rq.Queue(QUEUE_NAME, connection=connection, serializer=DefaultSerializer)
    bump_version_and_notify = f"touch {written}"
    forger.enqueue("os.system", bump_version_and_notify)
    pickler.enqueue("os.system", bump_version_and_notify)
    forger.enqueue("subprocess.run", ["touch", str(written)])
    # a name of the closed set, with company that RQ would otherwise keep
    spy = {"on_success": Callback("tests.service.background.test_queue.note"), "on_failure": Callback("os.system")}
    forger.enqueue("replan", **spy, webhooks=[Webhook(listener.url, "finished", method="POST")])
    forger.enqueue(
        "os.system", bump_version_and_notify, webhooks=[Webhook(listener.url, "failed"), Webhook(listener.url, "finished")]
    )
    forger.enqueue("replan", str(written), {"unexpected": 1})
    forger.enqueue("replan", retry=rq.Retry(max=3))
    until(lambda: connection.llen(f"rq:queue:{QUEUE_NAME}") == 0)
    works(worker)
    assert not written.exists()
    assert listener.calls == []
    refused = [line for line in worker.said()[before:].splitlines() if "refused queue job" in line]
    assert len(refused) == 4
    assert "'os.system' is not one of replan, validate, sweep" in refused[0]
    assert "Traceback" not in worker.said()[before:]


def note(*_: object) -> None:
    raise AssertionError("a callback ran")


DAMAGED = [
    {"data": b"\x80\x04 not json"},
    {"data": json.dumps("replan")},
    {"data": json.dumps([None, None, [], {}])},
    {"data": json.dumps([["replan"], "x" * 100, 3, 4])},
    {"data": json.dumps(["replan", None, [], {}]), "created_at": "yesterday", "timeout": "soon", "meta": b"\x80"},
    {"nothing": "here"},
]


def test_damaged_queue_jobs_do_not_stop_the_worker(stack, works, worker):
    connection = redis.Redis.from_url(stack.redis_url)
    for number, fields in enumerate(DAMAGED):
        connection.hset(f"rq:job:damaged{number}", mapping=fields)
        connection.rpush(f"rq:queue:{QUEUE_NAME}", f"damaged{number}")
    connection.set("rq:job:no-hash", "a string")
    connection.rpush(f"rq:queue:{QUEUE_NAME}", "never-written", "odd id !", "no-hash")
    works(worker)
    connection.delete("rq:job:no-hash")


def test_no_command_over_redis_reaches_the_worker(stack, works, worker):
    works(worker)
    connection = redis.Redis.from_url(stack.redis_url)
    assert connection.pubsub_channels() == []
    for name in worker_registration.get_keys(connection=connection):
        send_shutdown_command(connection, name.removeprefix("rq:worker:"))
    works(worker)


def missed(worker: Worker) -> bool:
    return "could not connect" in worker.said() or "lost Redis" in worker.said()


def test_the_worker_outlives_a_valkey_that_is_flushed_or_stopped(stack, works, worker):
    works(worker)
    redis.Redis.from_url(stack.redis_url).flushall()
    works(worker)
    stack.stop_valkey()
    try:
        until(lambda: missed(worker))
        assert worker.process.poll() is None
    finally:
        stack.start_valkey()
    works(worker)


def test_a_stop_is_clean(own_worker):
    assert own_worker.end(signal.SIGTERM) == 0
    assert "Traceback" not in own_worker.said()


def test_a_stop_is_clean_without_valkey_too(stack, own_worker):
    stack.stop_valkey()
    try:
        until(lambda: missed(own_worker))
        assert own_worker.end(signal.SIGINT) == 0
    finally:
        stack.start_valkey()
