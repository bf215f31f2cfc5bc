"""The queue worker: executes queue jobs in one process, without forking, and reconnects after Valkey restarts."""

import logging
import signal
import threading
from collections.abc import Callable, Mapping
from functools import partial
from types import FrameType
from typing import Any

import redis
import rq
from rq.exceptions import StopRequested
from rq.job import Job
from rq.serializers import JSONSerializer
from rq.timeouts import JobTimeoutException
from sqlalchemy.exc import SQLAlchemyError

from service.background.garbage_collection import Sweeper
from service.background.liveness import show_alive
from service.background.stopping import stop_all
from service.completions.session_starts import start_for_who_asks
from service.dependencies import Dependencies
from service.messaging.queue import LIMIT_SECONDS, QUEUE_NAME, NamedQueueJob, QueueJob, pending_key
from service.messaging.wakeups import connect
from service.scheduler.planner import replan
from service.scheduler.replan_pacing import Pace
from service.settings import Settings
from service.tasks.submission.validator import Validator
from service.tracing import span_exporter
from service.webhooks.courier import Courier
from service.webhooks.factories import courier_of

log = logging.getLogger(__name__)

_RETRY_SECONDS = 1.0
_TTL_SECONDS = 20  # with this TTL, RQ's blocking read of an empty queue returns every 5 s


def job_functions(
    dependencies: Dependencies, courier: Courier, validator: Validator, sweeper: Sweeper
) -> Mapping[QueueJob, Callable[[], None]]:
    """The function for each queue job. Each finds its own work in Postgres, and may find none."""
    pace = Pace()

    def plan() -> None:
        replan(dependencies, pace)
        courier.wake()  # the change that asked for a plan may also be a webhook event

    def answer() -> None:
        start_for_who_asks(dependencies)

    return {
        QueueJob.REPLAN: plan,
        QueueJob.VALIDATE: validator.wake,
        QueueJob.SWEEP: sweeper.wake,
        QueueJob.DELIVER: courier.wake,
        QueueJob.ANSWER: answer,
    }


class _Worker(rq.SimpleWorker):
    """Executes jobs in this process: RQ's fork per job costs more than most replans."""

    max_connection_wait_time = 2.0
    working = stopping = False
    alive: Callable[[], None]  # called at least every few seconds while nothing is executed

    def execute_job(self, job: Job, queue: rq.Queue) -> None:
        """Execute a job after deleting it from Redis: it has no result or history to keep, and its work is in Postgres."""
        with self.connection.pipeline() as pipeline:
            pipeline.delete(job.key)
            pipeline.lrem(queue.intermediate_queue_key, 1, job.id)
            pipeline.delete(pending_key(str(job.func_name)))  # before the work, which may miss what is asked from now on
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
        self.alive()
        self._stop_if_asked()  # the Redis client may swallow request_stop's exception
        super().heartbeat(timeout, pipeline)

    def request_stop(self, signum: int, frame: FrameType | None) -> None:
        self.stopping = True
        self._stop_if_asked()

    def _stop_if_asked(self) -> None:
        if self.stopping and not self.working:
            raise StopRequested

    def subscribe(self) -> None:
        """Accept no pub/sub commands, with which a writer in Redis could stop workers."""

    def unsubscribe(self) -> None:
        """Nothing was subscribed."""

    def run_maintenance_tasks(self) -> None:
        """Nothing to maintain: no queue job is kept in a registry."""

    def _install_signal_handlers(self) -> None:
        """Keep run_worker's handlers, which outlive each worker object."""


def run_worker(settings: Settings) -> None:
    """Execute queue jobs until SIGTERM or SIGINT; a running job ends first, and so do deliveries that are in flight. Tasks
    whose files are read are left to another validator, and what is not swept to the next sweep. Reconnects when Redis fails."""
    span_exporter.start(settings, "motet-queue")
    dependencies = Dependencies.of(settings)
    in_threads = courier_of(settings, dependencies.db), Validator(dependencies), Sweeper(dependencies)
    NamedQueueJob.work = job_functions(dependencies, *in_threads)
    stop = threading.Event()
    current: list[_Worker] = []

    def on_signal(signum: int, frame: FrameType | None) -> None:
        stop.set()
        if current:
            current[0].request_stop(signum, frame)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, on_signal)
    while not stop.is_set():
        show_alive(settings)
        try:
            connection = connect(settings.redis_url)
            worker = _Worker(
                [QUEUE_NAME], connection=connection, job_class=NamedQueueJob, serializer=JSONSerializer, worker_ttl=_TTL_SECONDS
            )
            worker.alive = partial(show_alive, settings)
            current[:] = [worker]
            log.info("queue worker started")
            worker.work(logging_level="WARNING")
        except (redis.RedisError, StopRequested) as error:
            log.warning("the queue worker lost Redis and will reconnect: %r", error)
        current.clear()
        stop.wait(_RETRY_SECONDS)
    stop_all(in_threads)
    span_exporter.stop()
