"""Listens on this node's Redis stream for wake-ups. Redis may be down: wake-ups only save time.

After a wake-up, an error or a reconnection the node fetches the whole desired state (level-triggered), so it misses no change.
"""

import logging
import threading
from collections.abc import Callable
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

log = logging.getLogger(__name__)

_BLOCK_SECONDS = 5.0
_RETRY_SECONDS = 1.0


class WakeupListener:
    """A thread that calls `on_wakeup` whenever the desired state may have changed."""

    def __init__(self, redis_url: str, stream: str, on_wakeup: Callable[[], None]) -> None:
        self._stream = stream
        self._on_wakeup = on_wakeup
        self._closed, self._away = threading.Event(), False
        self._redis = redis.Redis.from_url(
            redis_url, socket_connect_timeout=2, socket_timeout=2 * _BLOCK_SECONDS, retry=Retry(NoBackoff(), 0)
        )
        threading.Thread(target=self._listen, name="hints", daemon=True).start()

    def close(self) -> None:
        """End the thread; a read in progress ends within seconds, and its result is ignored."""
        self._closed.set()

    def _listen(self) -> None:
        while not self._closed.is_set():
            try:
                self._follow()
            except redis.RedisError as error:
                if not self._away:
                    log.warning("Redis is away, heartbeats alone tell of changes now: %s", error)
                self._away = True
                self._closed.wait(_RETRY_SECONDS)

    def _follow(self) -> None:
        """Read the stream from its start until it fails: earlier entries may be wake-ups that this node missed."""
        last: str | bytes = "0-0"
        self._redis.ping()
        self._on_wakeup()
        while not self._closed.is_set():
            answer: Any = self._redis.xread({self._stream: last}, block=int(_BLOCK_SECONDS * 1000))
            if self._away:
                log.info("Redis is back")
            self._away = False
            for _, entries in answer or []:
                last = entries[-1][0]
                if not self._closed.is_set():
                    self._on_wakeup()
