"""The job queue: wake-ups through RQ on Valkey. They carry no data; each job finds its work in Postgres.

A writer in Redis can name only one of `QueueJob`'s values, never a Python function.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any, ClassVar

import redis
import rq
from rq.exceptions import DeserializationError, NoSuchJobError
from rq.job import Job
from rq.serializers import JSONSerializer

from service.messaging.circuit_breaker import CircuitBreaker
from service.messaging.wakeups import connect

log = logging.getLogger(__name__)

QUEUE_NAME = "motet"
LIMIT_SECONDS = 900  # for one queue job
_ASKED_SECONDS = 2  # the longest that a lost wake-up suppresses others of its kind
_STORM = 12  # wake-ups of one kind within a second from which pacing starts
_PACE_SECONDS = 0.2  # between two paced wake-ups


class QueueJob(StrEnum):
    """The closed set of queue jobs."""

    REPLAN = "replan"
    VALIDATE = "validate"
    SWEEP = "sweep"
    DELIVER = "deliver"
    ANSWER = "answer"


class NamedQueueJob(Job):
    """A queue job restricted to the closed set, whatever its hash in Redis says. `work` maps each job to its function."""

    work: ClassVar[Mapping[QueueJob, Callable[[], None]]] = {}

    def __init__(self, id: str | None = None, connection: redis.Redis | None = None, serializer: Any = None) -> None:
        super().__init__(id, connection, JSONSerializer)  # the caller's serializer could be pickle

    def restore(self, raw_data: dict[bytes, bytes]) -> None:
        """Read only the job's name; ignore callbacks, webhooks, retries, arguments and limits, which a writer could forge."""
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


def pending_key(job: str) -> str:
    """The Redis key that exists while a wake-up of this kind is queued and not yet executing."""
    return f"motet:asked:{job}"


class Queue:
    """Wakes queue workers. Never raises: after a lost wake-up the reconciler finds the work in Postgres."""

    def __init__(self, redis_url: str) -> None:
        self._redis, self._breaker = connect(redis_url), CircuitBreaker()
        self._asked: dict[QueueJob, deque[float]] = {job: deque(maxlen=_STORM) for job in QueueJob}  # recent times
        self._sent: dict[QueueJob, float] = {}  # when the last one of each kind was sent
        self._later: dict[QueueJob, tuple[float, threading.Timer]] = {}
        self._lock = threading.Lock()
        self._queue = rq.Queue(QUEUE_NAME, connection=self._redis, job_class=NamedQueueJob, serializer=JSONSerializer)

    def wake(self, job: QueueJob) -> None:
        """Send a wake-up unless one of its kind is already queued, whose job will find this work too.

        From 12 in a second on, it sends one every 0.2 s, so that each job finds more work.
        """
        now = time.monotonic()
        lately = self._asked[job]
        storm = len(lately) == _STORM and now - lately[0] < 1.0
        lately.append(now)
        if storm and (since := now - self._sent.get(job, 0.0)) < _PACE_SECONDS:
            self.wake_later(job, _PACE_SECONDS - since)
            return
        if not self._breaker.allows():
            return
        try:
            free = self._redis.set(pending_key(job), 1, nx=True, ex=_ASKED_SECONDS)
            self._breaker.succeeded()
            if not free:
                return
            self._sent[job] = now
            self._queue.enqueue_call(job.value, timeout=LIMIT_SECONDS, result_ttl=0, failure_ttl=3600)
        except redis.RedisError as error:
            if isinstance(error, redis.TimeoutError):
                self._breaker.failed()
            log.warning("queue job %s was not sent, Redis is unreachable: %s", job, error)

    def wake_later(self, job: QueueJob, seconds: float) -> None:
        """Send a wake-up after `seconds`, or with an earlier one that is already delayed. It is lost if the process ends."""
        due = time.monotonic() + seconds
        with self._lock:
            put_off = self._later.get(job)
            if put_off is not None:
                if put_off[0] <= due:
                    return
                put_off[1].cancel()
            timer = threading.Timer(seconds, self._wake_now, [job])
            timer.daemon = True  # a stopping process does not wait for it
            self._later[job] = due, timer
            timer.start()

    def _wake_now(self, job: QueueJob) -> None:
        with self._lock:
            self._later.pop(job, None)
        self.wake(job)
