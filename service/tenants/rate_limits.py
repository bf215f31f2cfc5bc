"""Rate limits: requests of a key in a sliding minute, counted in Redis across all processes. Knows no tenants and no routes.

A process reserves requests in slices. All slices that are due share one round trip: those that a request waits for, and those
of keys in use that are about to end.
"""

import logging
import math
import time
from dataclasses import dataclass
from itertools import islice, takewhile

import redis
from limits import RateLimitItemPerMinute
from limits.storage import MemoryStorage
from limits.strategies import SlidingWindowCounterRateLimiter
from starlette.concurrency import run_in_threadpool

from service.http.problems import Problem
from service.messaging.circuit_breaker import CircuitBreaker
from service.messaging.wakeups import connect
from service.tenants.request_coalescer import RequestCoalescer

log = logging.getLogger(__name__)

_SLICES = 200  # a process reserves this fraction of a minute's limit at a time
_SLICE_SECONDS = 5.0  # lifetime of a slice; its unused requests are lost
_AHEAD_SECONDS = 1.0  # a used slice that ends sooner is renewed with the next fetch
_MOST = 10_000  # keys remembered
_MOST_FETCHED = 1000  # slices per round trip, and as many ahead of their end
_EVERYBODY = "everybody"
_MINUTE_MS = 60_000
# A sliding window of two counters: what the window before counted fades with the time that it still has to live. KEYS: this
# window's counter (it lives for two windows), the one before. ARGV: the limit, the window in ms, the sizes to try in turn.
# Returns the size reserved (0: none), what remains, and the ms until more does.
_RESERVE = """
local limit, window = tonumber(ARGV[1]), tonumber(ARGV[2])
local lives = redis.call('PTTL', KEYS[1])
if lives > 0 and lives < window then
    redis.call('RENAME', KEYS[1], KEYS[2])
    lives = lives + window
    redis.call('SET', KEYS[1], 0, 'PX', lives)
end
local now = tonumber(redis.call('GET', KEYS[1]) or 0)
local before = tonumber(redis.call('GET', KEYS[2]) or 0)
local fades = math.max(0, redis.call('PTTL', KEYS[2]))
local free = limit - now - math.floor(before * fades / window)
local taken = 0
for at = 3, #ARGV do
    local size = tonumber(ARGV[at])
    if size <= free then
        taken = size
        break
    end
end
if taken > 0 then
    if lives > 0 then
        redis.call('INCRBY', KEYS[1], taken)
    else
        lives = 2 * window
        redis.call('SET', KEYS[1], taken, 'PX', lives)
    end
end
local reset = 0
if now + taken > 0 then reset = lives - window end
if before > 0 then
    local next = fades % math.max(1, math.floor(window / before))
    if now + taken == 0 or next < reset then reset = next end
end
return {taken, math.max(0, free - taken), reset}
"""


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
    used: bool = False

    @property
    def lasts(self) -> bool:
        """Whether it admits another request."""
        return self.left > 0 and time.monotonic() < self.until

    @property
    def reset(self) -> int:
        return max(1, math.ceil(self.resets_at - time.monotonic()))


_NONE = _Slice(0, 0.0, 0, 0.0)


@dataclass(frozen=True)
class _Reservation:
    """What Redis granted of a key's limit: `taken` requests (0: none were left), and what remains beyond them."""

    taken: int
    remaining: int
    reset_seconds: float

    def slice(self) -> _Slice:
        now = time.monotonic()
        until = now + _SLICE_SECONDS if self.taken else 0.0
        return _Slice(self.taken, until, self.remaining, now + self.reset_seconds)


_Limit = tuple[str, int]  # a key and its requests per minute


class Rates:
    """Counts requests per key. Only the event loop may call it."""

    def __init__(self, redis_url: str) -> None:
        self._redis = connect(redis_url)
        self._reserve = self._redis.register_script(_RESERVE)
        self._alone = SlidingWindowCounterRateLimiter(MemoryStorage())
        self._breaker = CircuitBreaker()
        self._slices: dict[_Limit, _Slice] = {}  # in the order in which they were reserved
        self._fetches = RequestCoalescer(self._fetch, max_group_size=_MOST_FETCHED)

    async def take(self, key_id: str, per_minute: int, what: str = "requests of this key") -> Allowance:
        """Count one request of this key. `what` names the counted things in the refusal. Raises RateLimitExceeded."""
        limit = key_id, per_minute
        while not (held := self._slices.get(limit, _NONE)).lasts:
            given = await self._fetches.submit(_EVERYBODY, limit)
            assert given is not None  # a fetch answers for each limit
            if given.until == 0.0:
                raise _refusal(given, per_minute, what)
        held.left -= 1
        held.used = True
        return Allowance(per_minute, held.left + held.beyond, held.reset)

    async def _fetch(self, _: str, wanted: list[_Limit]) -> dict[_Limit, _Slice]:
        """Fetch and store slices, also for keys in use whose slice is about to end. A request that came while its key's slice
        was being fetched gets that one: a slice each would use up the minute."""
        held = {limit: self._slices[limit] for limit in wanted if self._slices.get(limit, _NONE).lasts}
        due = list(dict.fromkeys([*(limit for limit in wanted if limit not in held), *self._ending()]))
        if not due:
            return held
        fetched = {limit: one.slice() for limit, one in (await run_in_threadpool(self._ask, due)).items()}
        for limit, given in fetched.items():
            self._slices.pop(limit, None)
            if len(self._slices) >= _MOST:
                self._slices.clear()
            self._slices[limit] = given
        return fetched | held

    def _ending(self) -> list[_Limit]:
        """Keys in use whose slice ends soon with requests left. Drops slices that have ended."""
        now = time.monotonic()
        near = list(islice(takewhile(lambda item: item[1].until <= now + _AHEAD_SECONDS, self._slices.items()), _MOST_FETCHED))
        for limit, one in near:
            if one.until <= now:
                del self._slices[limit]
        return [limit for limit, one in near if one.used and one.left]

    def _ask(self, wanted: list[_Limit]) -> dict[_Limit, _Reservation]:
        if self._breaker.allows():
            try:
                given = self._ask_redis(wanted)
                self._breaker.succeeded()
                return given
            except redis.RedisError as error:
                self._breaker.failed()
                log.warning("rates are counted by this process alone, Redis is away: %s", error)
        return {limit: _next(self._alone, *limit) for limit in wanted}

    def _ask_redis(self, wanted: list[_Limit]) -> dict[_Limit, _Reservation]:
        pipeline = self._redis.pipeline(transaction=False)
        for key_id, per_minute in wanted:
            current = f"motet:limits:{{{RateLimitItemPerMinute(per_minute).key_for(key_id)}}}"
            self._reserve([current, f"{current}/-1"], [per_minute, _MINUTE_MS, *_sizes(per_minute)], client=pipeline)
        answers = pipeline.execute()
        return {
            limit: _Reservation(taken, remaining, reset_ms / 1000)
            for limit, (taken, remaining, reset_ms) in zip(wanted, answers, strict=True)
        }


def _refusal(held: _Slice, per_minute: int, what: str) -> RateLimitExceeded:
    headers = Allowance(per_minute, 0, held.reset).headers | {"Retry-After": str(held.reset)}
    message = f"The limit is {per_minute} {what} a minute; try again in {held.reset} s."
    return RateLimitExceeded(message, headers=headers, limit=per_minute)


def _sizes(per_minute: int) -> tuple[int, ...]:
    """Reserve a full slice, else a single request."""
    return tuple(dict.fromkeys((max(1, per_minute // _SLICES), 1)))


def _next(limiter: SlidingWindowCounterRateLimiter, key_id: str, per_minute: int) -> _Reservation:
    """As _RESERVE, in this process's memory."""
    item = RateLimitItemPerMinute(per_minute)
    taken = next((size for size in _sizes(per_minute) if limiter.hit(item, key_id, cost=size)), 0)
    stats = limiter.get_window_stats(item, key_id)
    return _Reservation(taken, stats.remaining, max(0.0, stats.reset_time - time.time()))
