"""Rate limits: requests of a key in a sliding minute, counted in Redis across all processes. Knows no tenants and no routes."""

import asyncio
import logging
import math
import time
from dataclasses import dataclass

import redis
from limits import RateLimitItemPerMinute
from limits.storage import MemoryStorage, RedisStorage
from limits.strategies import SlidingWindowCounterRateLimiter
from starlette.concurrency import run_in_threadpool

from service.http.problems import Problem
from service.messaging.circuit_breaker import CircuitBreaker
from service.messaging.wakeups import connect

log = logging.getLogger(__name__)

_SLICES = 200  # a process reserves this fraction of a minute's limit at a time
_SLICE_SECONDS = 5.0  # lifetime of a slice; its unused requests are lost
_MOST = 10_000  # keys remembered


class RateLimitExceeded(Problem):
    """The caller should wait for `Retry-After` seconds."""

    status, code, title = 429, "rate_limit_exceeded", "Too many requests"


@dataclass(frozen=True)
class Allowance:
    """A key's approximate remaining requests in its minute; `reset` is in seconds."""

    limit: int
    remaining: int
    reset: int

    @property
    def headers(self) -> dict[str, str]:
        return {
            "RateLimit-Limit": str(self.limit),
            "RateLimit-Remaining": str(self.remaining),
            "RateLimit-Reset": str(self.reset),
        }


@dataclass
class _Slice:
    """Requests that this process may admit without asking Redis, until `until` (0: none were left). `beyond`: requests left in
    the shared limit after this slice."""

    left: int
    until: float
    beyond: int
    resets_at: float

    @property
    def reset(self) -> int:
        return max(1, math.ceil(self.resets_at - time.monotonic()))


class Rates:
    """Counts requests per key. Only the event loop may call it."""

    def __init__(self, redis_url: str) -> None:
        pool = connect(redis_url).connection_pool
        self._shared = SlidingWindowCounterRateLimiter(
            RedisStorage("redis://", connection_pool=pool, key_prefix="motet:limits")
        )
        self._alone = SlidingWindowCounterRateLimiter(MemoryStorage())
        self._breaker = CircuitBreaker()
        self._slices: dict[str, _Slice] = {}
        self._asking: dict[str, asyncio.Task[_Slice]] = {}

    async def take(self, key_id: str, per_minute: int, what: str = "requests of this key") -> Allowance:
        """Count one request of this key. `what` names the counted things in the refusal. Raises RateLimitExceeded."""
        while (held := self._slices.get(key_id)) is None or held.left == 0 or time.monotonic() >= held.until:
            given = await self._next_slice(key_id, per_minute)
            if given.until == 0.0:
                raise _refusal(given, per_minute, what)
        held.left -= 1
        return Allowance(per_minute, held.left + held.beyond, held.reset)

    async def _next_slice(self, key_id: str, per_minute: int) -> _Slice:
        """Fetch a slice; concurrent requests of a key share one fetch, since one slice each would use up the minute."""
        asking = self._asking.get(key_id)
        if asking is None:
            asking = self._asking[key_id] = asyncio.ensure_future(self._fetch(key_id, per_minute))
        return await asyncio.shield(asking)

    async def _fetch(self, key_id: str, per_minute: int) -> _Slice:
        """Fetch and store a slice. It leaves `_asking` before its task ends, or `take` would loop on a finished task."""
        try:
            given = await run_in_threadpool(self._ask, key_id, per_minute)
        finally:
            del self._asking[key_id]
        if len(self._slices) >= _MOST:
            self._slices.clear()
        self._slices[key_id] = given
        return given

    def _ask(self, key_id: str, per_minute: int) -> _Slice:
        if self._breaker.allows():
            try:
                given = _next(self._shared, key_id, per_minute)
                self._breaker.succeeded()
                return given
            except redis.RedisError as error:
                self._breaker.failed()
                log.warning("rates are counted by this process alone, Redis is away: %s", error)
        return _next(self._alone, key_id, per_minute)


def _refusal(held: _Slice, per_minute: int, what: str) -> RateLimitExceeded:
    headers = Allowance(per_minute, 0, held.reset).headers | {"Retry-After": str(held.reset)}
    message = f"The limit is {per_minute} {what} a minute; try again in {held.reset} s."
    return RateLimitExceeded(message, headers=headers, limit=per_minute)


def _next(limiter: SlidingWindowCounterRateLimiter, key_id: str, per_minute: int) -> _Slice:
    """Reserve a full slice, else a single request, else none (`until` 0)."""
    item = RateLimitItemPerMinute(per_minute)
    sizes = dict.fromkeys((max(1, per_minute // _SLICES), 1))
    size = next((size for size in sizes if limiter.hit(item, key_id, cost=size)), 0)
    stats = limiter.get_window_stats(item, key_id)
    now = time.monotonic()
    resets_at = now + max(0.0, stats.reset_time - time.time())
    return _Slice(size, now + _SLICE_SECONDS if size else 0.0, stats.remaining, resets_at)
