"""Rates: each key's own, told in headers, counted for all processes together, and never in the way while Redis is away."""

import asyncio

import pytest
from fastapi import Request

from service.tenants.rate_limits import RateLimitExceeded, Rates
from tests.service.api import Caller


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


def test_who_calls_too_often_or_has_no_key_is_told_so_before_the_spec_is_looked_at(limited, client, monkeypatch):
    looked_at = []

    async def body(request):
        looked_at.append(request)
        return b""

    caller = limited(1)
    assert caller.get("/v1/quotas").status_code == 200
    monkeypatch.setattr(Request, "body", body)
    assert caller.post("/v1/tasks", json={"base_model": 7}).status_code == 429
    assert client.post("/v1/tasks", json={"base_model": 7}).status_code == 401
    assert not looked_at


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

        await asyncio.wait_for(asyncio.gather(*(keep_asking() for _ in range(20))), 60)
        return passed

    assert asyncio.run(all_the_time()) == 1200


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
