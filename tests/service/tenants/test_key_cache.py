"""The key cache: look-ups under way together share a query, used keys are checked ahead of their expiry, and a revocation
overtakes a look-up under way."""

import asyncio
import time
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import select, update

from service.database.async_reader import AsyncReader
from service.tenants import auth_throttle
from service.tenants.api_keys import hash_of
from service.tenants.auth_throttle import AuthThrottle, TooManyFailures
from service.tenants.browser_sessions import open_session
from service.tenants.key_cache import KeyCache
from service.tenants.models import ApiKey
from tests.service.live_server import PATIENCE

ONE_HOUR = timedelta(hours=1)


class Reader(AsyncReader):
    """Records the hashes of each query, and holds its answer back while `let` is not set."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.queries: list[set[bytes]] = []
        self.let = asyncio.Event()
        self.let.set()

    async def look_alone(self, statement: Any, parameters: Any) -> Any:
        found = await super().look_alone(statement, parameters)
        self.queries.append(set(parameters["hashes"]))
        await self.let.wait()
        return found

    async def begun(self, count: int) -> None:
        while len(self.queries) < count:
            await asyncio.sleep(0.01)


@pytest.fixture
def run(settings) -> Callable[..., None]:
    """Run `body(cache, reader)` on an event loop, with a cache of so many seconds."""

    def started(body: Callable[[KeyCache, Reader], Coroutine[Any, Any, None]], seconds: float = 60.0) -> None:
        async def whole() -> None:
            reader = Reader(settings.database_url)
            cache = KeyCache(reader, AuthThrottle(60), seconds)
            try:
                await asyncio.wait_for(body(cache, reader), PATIENCE)
            finally:
                await cache.close()

        asyncio.run(whole())

    return started


def revoke(database, secret: str) -> None:
    with database.begin() as session:
        session.execute(update(ApiKey).where(ApiKey.hash == hash_of(secret)).values(revoked_at=datetime.now(UTC)))


def test_look_ups_at_once_share_a_query_whatever_their_tenants(new_key, run):
    keys = [new_key() for _ in range(20)]

    async def body(cache: KeyCache, reader: Reader) -> None:
        reader.let.clear()
        first = asyncio.ensure_future(cache.ask(keys[0], "here"))
        await reader.begun(1)
        others = [asyncio.ensure_future(cache.ask(key, "here")) for key in [*keys, "mk_unknown", *keys]]
        await asyncio.sleep(0)
        reader.let.set()
        checks = [await first, *await asyncio.gather(*others)]
        assert reader.queries == [{hash_of(keys[0])}, {hash_of(key) for key in [*keys, "mk_unknown"]}]
        assert (checks[21].principal, checks[21].reason) == (None, "unknown")
        of_keys = [check.principal for check in checks[1:21]]
        assert len({principal.tenant_id for principal in of_keys}) == 20
        assert [cache.remembered(key) for key in keys] == of_keys == [check.principal for check in checks[22:]]
        assert cache.remembered("mk_unknown") is None

    run(body)


def test_valid_keys_that_come_at_once_from_one_address_are_all_let_in(new_key, run, monkeypatch):
    """More than the throttle's 60 wrong ones a minute: each holds a token until it is known to be valid."""
    monkeypatch.setattr(auth_throttle, "time", SimpleNamespace(monotonic=lambda: 1000.0))  # no token comes back meanwhile
    secrets = [new_key() for _ in range(70)]

    async def body(cache: KeyCache, reader: Reader) -> None:
        checks = await asyncio.gather(*(cache.ask(secret, "1.2.3.4") for secret in [*secrets, *[secrets[0]] * 80]))
        assert all(check.principal is not None for check in checks)
        wrong = await asyncio.gather(*(cache.ask(f"mk_{place}", "1.2.3.4") for place in range(100)), return_exceptions=True)
        assert sum(isinstance(check, TooManyFailures) for check in wrong) == 40
        assert len({hash for query in reader.queries for hash in query}) == len(secrets) + 60

    run(body)


def test_a_read_from_before_a_revocation_is_neither_shared_nor_remembered(database, new_key, run):
    secret = new_key()

    async def body(cache: KeyCache, reader: Reader) -> None:
        reader.let.clear()
        before = asyncio.ensure_future(cache.ask(secret, "here"))
        await reader.begun(1)
        await asyncio.to_thread(revoke, database, secret)
        cache.forget()
        after = asyncio.ensure_future(cache.ask(secret, "here"))
        await asyncio.sleep(0)
        reader.let.set()
        assert (await before).principal is not None
        assert cache.remembered(secret) is None, "while the look-up from after the revocation is still under way"
        assert (await after).reason == "revoked"
        assert cache.remembered(secret) is None

    run(body)


def test_used_keys_are_checked_ahead_of_their_expiry_with_the_next_query(new_key, run):
    used, unused, other = (new_key() for _ in range(3))

    async def body(cache: KeyCache, reader: Reader) -> None:
        for key in (used, unused):
            assert (await cache.ask(key, "here")).principal is not None
        principal = cache.remembered(used)
        until = cache._verified[False, hash_of(used)].until
        await cache.ask(other, "here")
        assert reader.queries[-1] == {hash_of(other)}, "both keys were checked a moment ago"
        cache._seconds = 240.0  # half of it is more than what is left to both
        await cache.ask("mk_unknown", "here")
        assert reader.queries[-1] == {hash_of("mk_unknown"), hash_of(used)}
        assert cache._verified[False, hash_of(used)].until > until
        assert cache.remembered(used) == principal
        assert not cache._verified[False, hash_of(unused)].used

    run(body)


def test_a_key_in_constant_use_is_refused_in_time_after_its_revocation_elsewhere(database, new_key, run):
    """By a process that is not told of it: checks ahead of the expiry do not lengthen a refused key's time."""
    secret, others, seconds = new_key(), [new_key() for _ in range(3)], 1.0

    async def body(cache: KeyCache, reader: Reader) -> None:
        assert (await cache.ask(secret, "here")).principal is not None
        await asyncio.to_thread(revoke, database, secret)
        revoked = time.monotonic()
        asked = revoked
        while cache.remembered(secret) is not None:
            assert asked < revoked + seconds
            await asyncio.gather(*(cache.ask(other, "here") for other in others))
            asked = time.monotonic()
        assert (await cache.ask(secret, "here")).reason == "revoked"

    run(body, seconds)


def test_sessions_and_keys_are_looked_up_apart(database, new_key, run):
    key = new_key()
    with database.begin() as session:
        row = session.execute(select(ApiKey.id, ApiKey.tenant_id).where(ApiKey.hash == hash_of(key))).one()

    async def body(cache: KeyCache, reader: Reader) -> None:
        principal = (await cache.ask(key, "here")).principal
        assert (principal.key_id, principal.tenant_id) == tuple(row)
        with database.begin() as session:
            browser, _ = open_session(session, principal, lasts=ONE_HOUR)
        reader.queries.clear()
        checks = await asyncio.gather(*(cache.ask(one, "here") for one in (key, browser, "ms_unknown", "mk_unknown")))
        assert [check.principal for check in checks] == [principal, principal, None, None]
        assert [check.reason for check in checks[2:]] == ["session_over", "unknown"]
        assert reader.queries == [{hash_of(key), hash_of("mk_unknown")}, {hash_of(browser), hash_of("ms_unknown")}]
        await asyncio.to_thread(revoke, database, key)
        cache.forget()
        assert [(await cache.ask(one, "here")).reason for one in (key, browser)] == ["revoked", "revoked"]

    run(body)


def test_memory_is_bounded(new_key, run, monkeypatch):
    monkeypatch.setattr("service.tenants.key_cache._MOST", 3)
    keys = [new_key() for _ in range(5)]

    async def body(cache: KeyCache, reader: Reader) -> None:
        for number, key in enumerate(keys, 1):
            await cache.ask(key, "here")
            assert len(cache._verified) == (number if number <= 3 else number - 3)

    run(body)


def test_unused_keys_that_expired_leave_memory(new_key, run):
    keys = [new_key() for _ in range(3)]

    async def body(cache: KeyCache, reader: Reader) -> None:
        await asyncio.gather(*(cache.ask(key, "here") for key in keys))
        assert [cache.remembered(key) for key in keys] == [None] * 3
        assert len(cache._verified) == 3
        await cache.ask("mk_unknown", "here")
        assert reader.queries[-1] == {hash_of("mk_unknown")}
        assert not cache._verified

    run(body, seconds=0.0)
