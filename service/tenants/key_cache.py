"""Caches verified API keys for moments, so that a poller does not query the database with every request. Knows no HTTP.

A revoked key is refused within the cache's lifetime.
"""

import asyncio
import time

from starlette.concurrency import run_in_threadpool

from service.database.engine import Database
from service.tenants.api_keys import KeyCheck, Principal, check_key, hash_of
from service.tenants.auth_throttle import AuthThrottle

SECONDS = 3.0
_MOST = 10_000  # keys remembered; beyond it, all are forgotten and asked for anew


class KeyCache:
    """Looks keys up in `db`, which must see every tenant's. Any thread may use it."""

    def __init__(self, db: Database, throttle: AuthThrottle, seconds: float = SECONDS) -> None:
        self._db, self._throttle, self._seconds = db, throttle, seconds
        self._known: dict[bytes, tuple[float, Principal]] = {}
        self._asking: dict[bytes, asyncio.Task[KeyCheck]] = {}

    def remembered(self, secret: str) -> Principal | None:
        """Whose key this is, if it was good a moment ago. Asks nobody."""
        until, principal = self._known.get(hash_of(secret), (0.0, None))
        return principal if time.monotonic() < until else None

    async def ask(self, secret: str, address: str) -> KeyCheck:
        """What the database says of the key now, asked once for all who ask meanwhile. Only the event loop may call it. Raises
        TooManyFailures, without asking, where the caller's address sent too many wrong ones."""
        hash, asking = hash_of(secret), self._asking
        check = asking.get(hash)
        if check is None:
            check = asking[hash] = asyncio.ensure_future(self._look_up(secret, address))
            check.add_done_callback(lambda _: asking.pop(hash, None))
        return await asyncio.shield(check)

    async def _look_up(self, secret: str, address: str) -> KeyCheck:
        with self._throttle.attempt(address, secret) as attempt:
            check = await run_in_threadpool(self.check, secret)
            attempt.failed = check.principal is None
            return check

    def check(self, secret: str) -> KeyCheck:
        """What the database says of the key; a good one is remembered, at most until it expires."""
        asked, known = time.monotonic(), self._known
        with self._db.begin() as session:
            found = check_key(session, secret)
        if found.principal is not None:
            if len(known) >= _MOST:
                known.clear()
            lasts = self._seconds if found.seconds_left is None else min(self._seconds, found.seconds_left)
            known[hash_of(secret)] = asked + lasts, found.principal  # not among those of after a revocation
        return found

    def forget(self) -> None:
        """Ask for every key anew: one was revoked."""
        self._known, self._asking = {}, {}
