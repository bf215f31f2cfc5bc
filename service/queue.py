"""Queue jobs: wake-ups that travel through RQ on Valkey. They carry no truth; each finds its work in Postgres.

A writer in Redis can name one of `QueueJob` and nothing else: no function, no argument, no callback, no webhook.
What each of them does stands in work.py, which only a queue worker loads.
"""

import importlib
import logging
import signal
import threading
from collections.abc import Callable, Mapping
from enum import StrEnum
from types import FrameType
from typing import Any, ClassVar

import redis
import rq
from rq.exceptions import DeserializationError, NoSuchJobError, StopRequested
from rq.job import Job
from rq.serializers import JSONSerializer
from rq.timeouts import JobTimeoutException
from sqlalchemy.exc import SQLAlchemyError

from service.hints import connect
from service.settings import Settings

log = logging.getLogger(__name__)

QUEUE_NAME = "motet"
LIMIT_SECONDS = 900  # for one queue job
_RETRY_SECONDS = 1.0
_TTL_SECONDS = 20  # RQ then looks up from an empty queue every 5 s
# Named, not imported: it imports every room, and every room imports this file. The API thus never loads the solver.
_WORK_MODULE = "service.work"


class QueueJob(StrEnum):
    """The closed set."""

    REPLAN = "replan"
    VALIDATE = "validate"
    SWEEP = "sweep"


class ClosedJob(Job):
    """A queue job of the closed set, whatever its hash in Redis says. `work` holds what a worker of this process does."""

    work: ClassVar[Mapping[QueueJob, Callable[[], None]]] = {}

    def __init__(self, id: str | None = None, connection: redis.Redis | None = None, serializer: Any = None) -> None:
        super().__init__(id, connection, JSONSerializer)  # the caller's serializer could be pickle

    def restore(self, raw_data: dict[bytes, bytes]) -> None:
        """Take the name alone: callbacks, webhooks, retries, arguments and limits of the hash are not ours to obey."""
        if b"data" not in raw_data:
            raise NoSuchJobError(f"queue job {self.id} has no data")
        super().restore({b"data": raw_data[b"data"]})
        try:
            self.func_name = str(self.func_name)
        except DeserializationError:
            self.func_name = "(not readable)"
        self.instance, self.args, self.kwargs = None, (), {}
        self.origin = QUEUE_NAME
        self.timeout, self.result_ttl, self.failure_ttl = LIMIT_SECONDS, 0, 3600

    def perform(self) -> None:
        try:
            named = QueueJob(self.func_name or "")
        except ValueError:
            log.error("refused queue job %s: %.200r is not one of %s", self.id, self.func_name, ", ".join(QueueJob))
            return
        self.work[named]()


class Queue:
    """Wakes queue workers. Never raises: whatever a lost wake-up was for, the reconciler finds in Postgres."""

    def __init__(self, redis_url: str) -> None:
        self._queue = rq.Queue(QUEUE_NAME, connection=connect(redis_url), job_class=ClosedJob, serializer=JSONSerializer)

    def wake(self, job: QueueJob) -> None:
        try:
            self._queue.enqueue_call(job.value, timeout=LIMIT_SECONDS, result_ttl=0, failure_ttl=3600)
        except redis.RedisError as error:
            log.warning("queue job %s was not sent, Redis is away: %s", job, error)


class _Worker(rq.SimpleWorker):
    """Works in this very process: RQ's fork for each queue job costs more than most replans."""

    max_connection_wait_time = 2.0
    working = stopping = False

    def execute_job(self, job: Job, queue: rq.Queue) -> None:
        """Do it. It is forgotten before: a wake-up has no result and no history, and what it was for is in Postgres."""
        with self.connection.pipeline() as pipeline:
            pipeline.delete(job.key)
            pipeline.lrem(queue.intermediate_queue_key, 1, job.id)
            pipeline.execute()
        self.working = True
        try:
            with self.death_penalty_class(LIMIT_SECONDS, JobTimeoutException, job_id=job.id):
                job.perform()
        except SQLAlchemyError as error:
            log.error("queue job %s failed and is left to the reconciler: %s", job.func_name, error)
        finally:
            self.working = False

    def heartbeat(self, timeout: int | None = None, pipeline: Any = None) -> None:
        self._stop_if_asked()  # what request_stop raises can get lost inside the Redis client
        super().heartbeat(timeout, pipeline)

    def request_stop(self, signum: int, frame: FrameType | None) -> None:
        self.stopping = True
        self._stop_if_asked()

    def _stop_if_asked(self) -> None:
        if self.stopping and not self.working:
            raise StopRequested

    def subscribe(self) -> None:
        """Take no commands over pub/sub: a writer in Redis could stop workers with them."""

    def unsubscribe(self) -> None:
        """Nothing was subscribed."""

    def run_maintenance_tasks(self) -> None:
        """Nothing to mend: nothing is kept of queue jobs."""

    def _install_signal_handlers(self) -> None:
        """run_worker's handlers outlive any one worker."""


def run_worker(settings: Settings) -> None:
    """Work off queue jobs until SIGTERM or SIGINT, which let the one in hand end. Redis may come and go."""
    ClosedJob.work = importlib.import_module(_WORK_MODULE).assemble(settings)
    stop = threading.Event()
    current: list[_Worker] = []

    def on_signal(signum: int, frame: FrameType | None) -> None:
        stop.set()
        if current:
            current[0].request_stop(signum, frame)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, on_signal)
    while not stop.is_set():
        try:
            connection = connect(settings.redis_url)
            worker = _Worker(
                [QUEUE_NAME], connection=connection, job_class=ClosedJob, serializer=JSONSerializer, worker_ttl=_TTL_SECONDS
            )
            current[:] = [worker]
            log.info("working off queue jobs")
            worker.work(logging_level="WARNING")
        except (redis.RedisError, StopRequested) as error:
            log.warning("the queue worker lost Redis and will look again: %r", error)
        current.clear()
        stop.wait(_RETRY_SECONDS)
