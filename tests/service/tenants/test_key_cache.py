"""The key ring: who asks while a key is being looked up shares the look-up, and a revocation overtakes one under way."""

import asyncio
import threading

import pytest

from service.tenants import key_cache
from service.tenants.auth_throttle import AuthThrottle
from service.tenants.key_cache import KeyCache


@pytest.fixture
def gates(monkeypatch):
    """Look-ups that have read and do not answer until their gate is set; a look-up takes its gate from the list."""
    closed, look_up = [threading.Event(), threading.Event()], key_cache.check_key
    left = list(closed)

    def check(session, secret):
        found, gate = look_up(session, secret), left.pop(0)
        assert gate.wait(60)
        return found

    monkeypatch.setattr(key_cache, "check_key", check)
    closed[0].begun = lambda: len(left) < 2
    return closed


def test_those_who_ask_at_once_share_a_look_up(database, new_key, gates):
    async def ask():
        ring, secret = KeyCache(database, AuthThrottle(60)), new_key()
        asking = [asyncio.ensure_future(ring.ask(secret, "here")) for _ in range(20)]
        await asyncio.wait(asking, timeout=0)
        for gate in gates:
            gate.set()
        checks = await asyncio.gather(*asking)
        assert len({check.principal for check in checks}) == 1
        assert ring.remembered(secret) == checks[0].principal
        assert (await ring.ask("mk_unknown", "here")).principal is None  # there was a gate left for it

    asyncio.run(ask())


def test_what_was_read_before_a_revocation_is_neither_shared_nor_remembered_after_it(database, new_key, gates):
    async def ask():
        ring, secret = KeyCache(database, AuthThrottle(60)), new_key()
        before = asyncio.ensure_future(ring.ask(secret, "here"))
        while not gates[0].begun():
            await asyncio.wait([before], timeout=0.01)
        ring.forget()
        after = asyncio.ensure_future(ring.ask(secret, "here"))
        gates[0].set()
        assert (await before).principal is not None
        assert ring.remembered(secret) is None
        gates[1].set()
        check = await after
        assert ring.remembered(secret) == check.principal

    asyncio.run(ask())
