"""What a wake-up leaves in Redis while no queue worker is there to take it, and that its sender survives without Redis."""

import time
from datetime import UTC, datetime

import redis

from service.messaging import queue as queue_module
from service.messaging.queue import QUEUE_NAME, NamedQueueJob, Queue, QueueJob, pending_key
from service.messaging.wakeups import NodeWakeups
from tests.service.live_server import PATIENCE


def test_what_only_wakes_never_raises_and_never_waits_long(stack):
    queue, wakeups = Queue(stack.redis_url), NodeWakeups(stack.redis_url)
    stack.stop_valkey()
    try:
        queue.wake(QueueJob.REPLAN)
        wakeups.desired_changed("node_1")
    finally:
        stack.start_valkey()
    queue.wake(QueueJob.REPLAN)  # and the same objects work on afterwards
    wakeups.desired_changed("node_1")
    connection = redis.Redis.from_url(stack.redis_url)
    assert connection.llen(f"rq:queue:{QUEUE_NAME}") == 1
    assert connection.xlen("motet:node:node_1") == 1


def test_wake_ups_of_one_kind_wait_together(stack, monkeypatch):
    assert 0 < queue_module._ASKED_SECONDS <= 2, "lost ones do not keep others back for long"
    monkeypatch.setattr(queue_module, "_ASKED_SECONDS", 600)  # longer than this test takes
    connection = redis.Redis.from_url(stack.redis_url)
    connection.flushall()
    for queue in (Queue(stack.redis_url), Queue(stack.redis_url)):
        queue.wake(QueueJob.REPLAN)
        queue.wake(QueueJob.REPLAN)
    queue.wake(QueueJob.VALIDATE)
    assert connection.llen(f"rq:queue:{QUEUE_NAME}") == 2
    assert 0 < connection.ttl(pending_key(QueueJob.REPLAN)) <= 600
    connection.flushall()


def test_a_queue_job_carries_its_name_alone(stack):
    connection = redis.Redis.from_url(stack.redis_url)
    connection.flushall()
    Queue(stack.redis_url).wake(QueueJob.VALIDATE)
    (job_id,) = connection.lrange(f"rq:queue:{QUEUE_NAME}", 0, -1)
    job = NamedQueueJob.fetch(job_id.decode(), connection)
    assert (job.func_name, job.args, job.kwargs, job.result_ttl) == ("validate", (), {}, 0)
    assert (datetime.now(UTC) - job.created_at).total_seconds() < 3600
    connection.flushall()


def test_what_is_put_off_is_sent_once_and_at_the_earliest_moment_it_was_put_off_to(stack):
    connection = redis.Redis.from_url(stack.redis_url)
    connection.flushall()
    queue = Queue(stack.redis_url)
    queue.wake_later(QueueJob.REPLAN, 3600.0)
    queue.wake_later(QueueJob.REPLAN, 0.0)
    queue.wake_later(QueueJob.REPLAN, 3600.0)
    _, job_id = connection.blpop(f"rq:queue:{QUEUE_NAME}", timeout=PATIENCE)
    assert NamedQueueJob.fetch(job_id.decode(), connection).func_name == "replan"
    assert connection.llen(f"rq:queue:{QUEUE_NAME}") == 0
    connection.flushall()


def test_in_a_storm_wake_ups_are_sent_at_a_pace_and_the_last_one_is_not_lost(stack):
    connection = redis.Redis.from_url(stack.redis_url)
    connection.flushall()
    queue, name, began = Queue(stack.redis_url), f"rq:queue:{QUEUE_NAME}", time.monotonic()
    for _ in range(200):
        queue.wake(QueueJob.REPLAN)
        connection.delete(pending_key(QueueJob.REPLAN))  # as a worker does that has begun with it
    paced = (time.monotonic() - began) * 5
    assert connection.llen(name) <= 12 * (time.monotonic() - began + 1) + paced + 1
    connection.delete(name)
    queue.wake(QueueJob.REPLAN)
    assert connection.blpop(name, timeout=PATIENCE)
    connection.flushall()
