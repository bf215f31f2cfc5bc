"""What the listener says of a Redis that goes away: once each time."""

import logging
import queue

import redis

from worker.node.wakeup_listener import WakeupListener


class Said(logging.Handler):
    """What is logged, as it comes."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: queue.SimpleQueue[str] = queue.SimpleQueue()

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.put(record.getMessage())


def test_each_time_that_redis_goes_away_is_told_once(stack):
    said, log = Said(), logging.getLogger("worker.node.wakeup_listener")
    log.addHandler(said)
    log.setLevel(logging.INFO)
    woken: queue.SimpleQueue[None] = queue.SimpleQueue()
    listener = WakeupListener(stack.valkey.url("node"), "motet:node:node_1", lambda: woken.put(None))
    try:
        for _ in range(2):
            woken.get(timeout=60)
            stack.stop_valkey()
            assert said.lines.get(timeout=60).startswith("Redis is away, ")
            stack.start_valkey()
            with redis.Redis.from_url(stack.redis_url) as valkey:
                valkey.xadd("motet:node:node_1", {"kind": "desired"})
            assert said.lines.get(timeout=60) == "Redis is back"
    finally:
        listener.close()
        log.removeHandler(said)
        log.setLevel(logging.NOTSET)
    assert said.lines.empty()
