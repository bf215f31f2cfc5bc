"""Rates: each key's own, told in headers, counted for all processes together, and never in the way while Redis is away."""

import asyncio
import math
import time

import pytest
from limits.storage import RedisStorage
from limits.strategies import SlidingWindowCounterRateLimiter

from service.tenants import rate_limits
from service.tenants.rate_limits import RateLimitExceeded, Rates
from tests.service.api import Caller
from tests.service.live_server import PATIENCE


@pytest.fixture
def limited(admin, client):
    """A key of a few requests a minute."""

    def make(per_minute: int) -> Caller:
        body = {"requests_per_minute": per_minute}
        key = admin.post(f"/v1/admin/tenants/{admin.tenant_id}/keys", json=body).json()
        assert key["requests_per_minute"] == per_minute
        return Caller(client, admin.tenant_id, key["secret"])

    return make


def test_a_key_that_calls_too_often_is_told_when_to_go_on(limited, tenant):
    caller = limited(3)
    answers = [caller.get("/v1/quotas") for _ in range(5)]
    assert [answer.status_code for answer in answers] == [200, 200, 200, 429, 429]
    assert [answer.headers["ratelimit-remaining"] for answer in answers] == ["2", "1", "0", "0", "0"]
    assert {answer.headers["ratelimit-limit"] for answer in answers} == {"3"}
    refused = answers[-1]
    assert 1 <= int(refused.headers["retry-after"]) <= 60
    assert (refused.json()["code"], refused.json()["limit"]) == ("rate_limit_exceeded", 3)
    assert tenant.get("/v1/quotas").status_code == 200  # another key is not held up


def test_an_error_carries_the_headers_too(limited):
    answer = limited(10).get("/v1/tasks/none")
    assert (answer.status_code, answer.headers["ratelimit-remaining"]) == (404, "9")


def test_a_submission_that_is_no_spec_counts_once(limited):
    answer = limited(10).post("/v1/tasks", json={"base_model": 7})
    assert (answer.status_code, answer.headers["ratelimit-remaining"]) == (422, "9")


def test_who_calls_too_often_is_told_so_before_the_spec_is_read(limited):
    caller, unreadable = limited(1), {"content": "{", "headers": {"content-type": "application/json"}}
    assert caller.post("/v1/tasks", **unreadable).status_code == 400
    assert caller.post("/v1/tasks", **unreadable).status_code == 429


def test_a_key_without_a_limit_has_the_services(tenant, settings):
    answer = tenant.get("/v1/quotas")
    assert answer.headers["ratelimit-limit"] == str(settings.requests_per_minute)
    assert int(answer.headers["ratelimit-remaining"]) < settings.requests_per_minute


async def take(rates: Rates, key: str, per_minute: int, times: int) -> int:
    """How many of so many requests pass."""
    passed = 0
    for _ in range(times):
        try:
            await rates.take(key, per_minute)
            passed += 1
        except RateLimitExceeded:
            continue
    return passed


@pytest.mark.parametrize("per_minute", [7, 2000])
def test_processes_count_together(settings, per_minute):
    """Slices are a two-hundredth of the limit: what two processes hold unused is no more than that."""

    async def both() -> int:
        one, two = Rates(settings.redis_url), Rates(settings.redis_url)
        passed = 0
        for _ in range(per_minute):
            passed += await take(one, f"shared {per_minute}", per_minute, 1)
            passed += await take(two, f"shared {per_minute}", per_minute, 1)
        return passed

    assert asyncio.run(both()) == per_minute


def test_most_requests_ask_nobody(settings, monkeypatch):
    asked = []

    async def many() -> int:
        rates = Rates(settings.redis_url)
        ask = rates._ask
        monkeypatch.setattr(rates, "_ask", lambda *given: asked.append(given) or ask(*given))
        return await take(rates, "a busy poller", 30_000, 1000)

    assert asyncio.run(many()) == 1000
    assert len(asked) <= 8  # slices of 150


def test_requests_at_once_share_a_slice(settings):
    """Each with a slice of its own, 150 requests of 30,000 allowed would have spent 22,500."""

    async def at_once() -> list[int]:
        rates = Rates(settings.redis_url)
        return [allowance.remaining for allowance in await asyncio.gather(*(rates.take("at once", 30_000) for _ in range(400)))]

    assert sorted(asyncio.run(at_once())) == list(range(29_600, 30_000))


def test_requests_at_once_are_refused_one_by_one(settings):
    async def at_once() -> list[object]:
        rates = Rates(settings.redis_url)
        return await asyncio.gather(*(rates.take("few at once", 30) for _ in range(50)), return_exceptions=True)

    passed = [isinstance(answer, RateLimitExceeded) for answer in asyncio.run(at_once())]
    assert (passed.count(False), passed.count(True)) == (30, 20)


def test_whoever_comes_the_moment_a_slice_does_is_let_through(settings):
    """The slice is used up by then, and the next one must be asked for."""

    async def all_the_time() -> int:
        rates, passed = Rates(settings.redis_url), 0

        async def keep_asking() -> None:
            nonlocal passed
            for _ in range(60):
                await rates.take("all the time", 6000)
                passed += 1
                await asyncio.sleep(0)

        await asyncio.wait_for(asyncio.gather(*(keep_asking() for _ in range(20))), PATIENCE)
        return passed

    assert asyncio.run(all_the_time()) == 1200


def test_keys_share_round_trips_and_slices_in_use_are_renewed_ahead(settings, monkeypatch):
    """A slice that nobody used, or of which nothing is left, is not renewed."""
    monkeypatch.setattr("service.tenants.rate_limits._AHEAD_SECONDS", 7200.0)  # longer than a slice of this test
    asked: list[list[str]] = []

    async def body() -> None:
        rates = Rates(settings.redis_url)
        ask = rates._ask
        monkeypatch.setattr(rates, "_ask", lambda due: asked.append([key for key, _ in due]) or ask(due))
        await asyncio.gather(*(rates.take(f"many {number}", 30_000) for number in range(40)), rates.take("few", 30))
        assert asked == [[*(f"many {number}" for number in range(40)), "few"]]
        rates._slices["many 7", 30_000].used = False
        await rates.take("one more", 30_000)
        assert asked[1:] == [["one more", *(f"many {number}" for number in range(40) if number != 7)]]
        renewed = rates._slices["many 8", 30_000]
        assert (renewed.left, renewed.beyond) == (150, 30_000 - 300)
        assert (await rates.take("many 8", 30_000)).remaining == 30_000 - 151

    asyncio.run(body())


@pytest.mark.parametrize("per_minute", [1, 7, 1000])
def test_the_script_counts_as_the_library_does_in_three_round_trips(settings, per_minute):
    rates, key = Rates(settings.redis_url), f"same {per_minute}"
    storage = RedisStorage("redis://", connection_pool=rates._redis.connection_pool, key_prefix="motet:library")
    limiter = SlidingWindowCounterRateLimiter(storage)
    for _ in range(210):
        began = time.monotonic()
        (there,) = rates._ask_redis([(key, per_minute)]).values()
        here = rate_limits._next(limiter, key, per_minute)
        assert (there.taken, there.remaining) == (here.taken, here.remaining)
        apart = abs(there.reset_seconds - here.reset_seconds) % 60  # the library says 0 where a whole minute is left
        assert min(apart, 60 - apart) < time.monotonic() - began + 1
    assert there.taken == 0


def test_a_window_fades_and_makes_room(settings):
    """Of what the window before counted, so much counts as it has still to live; its counter is one of the version before."""
    rates, name = Rates(settings.redis_url), "motet:limits:{LIMITER/fading/100/1/minute}"
    assert [one.taken for one in rates._ask_redis([("fading", 100)] * 1).values()] == [1]
    rates._redis.set(name, 100, px=75_000)  # a window of 100 requests, which lasts another 15 s
    (given,) = rates._ask_redis([("fading", 100)]).values()
    assert given.taken == 0
    began = time.monotonic()
    rates._redis.pexpire(name, 15_000)  # it ended 45 s ago
    (given,) = rates._ask_redis([("fading", 100)]).values()
    passed = math.ceil((time.monotonic() - began) * 1000) + 1  # ms, at most
    assert given.taken == 1
    assert 74 <= given.remaining <= 99 - (15_000 - passed) * 100 // 60_000
    assert rates._redis.get(name) == b"1"
    left = rates._redis.pttl(name)
    assert 75_000 - math.ceil((time.monotonic() - began) * 1000) - 1 <= left <= 75_000
    assert rates._redis.get(f"{name}/-1") == b"100"


def test_without_redis_each_process_counts_alone(stack, settings):
    rates = Rates(settings.redis_url)

    async def while_away() -> tuple[int, int]:
        return await take(rates, "away", 5, 8), await take(Rates(settings.redis_url), "away", 5, 8)

    stack.stop_valkey()
    try:
        assert asyncio.run(while_away()) == (5, 5)
    finally:
        stack.start_valkey()
    rates._breaker.succeeded()  # as comes by itself within seconds
    assert asyncio.run(take(rates, "back", 5, 8)) == 5
