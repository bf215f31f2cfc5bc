"""Caches verified API keys and browser sessions for 3 s, so that a poller does not query the database with every request.
Knows no HTTP.

A process refuses a revoked key at the latest when its cache entry expires.
"""

import asyncio
import time

from starlette.concurrency import run_in_threadpool

from service.database.engine import Database
from service.tenants.api_keys import KeyCheck, Principal, check_key, hash_of
from service.tenants.auth_throttle import AuthThrottle
from service.tenants.browser_sessions import check_session, is_session

SECONDS = 3.0
_MOST = 10_000  # keys cached; beyond it the cache is cleared


class KeyCache:
    """Looks keys up in `db`, which must see every tenant's keys. Any thread may use it."""

    def __init__(self, db: Database, throttle: AuthThrottle, seconds: float = SECONDS) -> None:
        self._db, self._throttle, self._seconds = db, throttle, seconds
        self._known: dict[bytes, tuple[float, Principal]] = {}
        self._asking: dict[bytes, asyncio.Task[KeyCheck]] = {}

    def remembered(self, secret: str) -> Principal | None:
        """The cached Principal of this key, if any. Queries nothing."""
        until, principal = self._known.get(hash_of(secret), (0.0, None))
        return principal if time.monotonic() < until else None

    async def ask(self, secret: str, address: str) -> KeyCheck:
        """Look the key up in the database; concurrent requests with the same key share one query. Only the event loop may call
        it. Raises TooManyFailures, without a query, if the caller's address sent too many wrong keys."""
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
        """Look the key up in the database; caches a valid key, at most until it expires."""
        asked, known = time.monotonic(), self._known
        with self._db.begin() as session:
            found = check_session(session, secret) if is_session(secret) else check_key(session, secret)
        if found.principal is not None:
            if len(known) >= _MOST:
                known.clear()
            lasts = self._seconds if found.seconds_left is None else min(self._seconds, found.seconds_left)
            known[hash_of(secret)] = asked + lasts, found.principal  # the dict from before the query: `forget` replaces it
        return found

    def forget(self) -> None:
        """Clear the cache after a revocation."""
        self._known, self._asking = {}, {}
