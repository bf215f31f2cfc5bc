"""Caches verified API keys and browser sessions for 3 s, so that a poller does not query the database with every request.
Knows no HTTP.

All credentials that are due share one query: those asked for while the one before was in flight, and, ahead of their expiry,
those that were used since their last check. A revocation is announced to all processes; one that misses the notice refuses the
key at the latest when its cache entry expires.
"""

import time
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice, takewhile
from typing import Any

from service.database.async_reader import AsyncReader
from service.tenants.api_keys import CHECK_KEYS, RIGHTS_CHANGED, UNKNOWN, KeyCheck, Principal, hash_of, key_check
from service.tenants.auth_throttle import AuthThrottle
from service.tenants.browser_sessions import CHECK_SESSIONS, OVER, is_session, session_check
from service.tenants.request_coalescer import RequestCoalescer

SECONDS = 3.0
_MOST = 10_000  # credentials cached; beyond it the cache is cleared
_MOST_CHECKED = 1000  # credentials per query, and as many ahead of their expiry
_EVERYBODY = "everybody"

_Credential = tuple[bool, bytes]  # whether it is a browser session's, and its hash


@dataclass
class _Verified:
    """A valid credential; `until` is monotonic. `used` since its last check."""

    principal: Principal
    until: float
    used: bool = False


class KeyCache:
    """Looks keys up by `reader`, whose role must see every tenant's keys. Only the event loop may call it, except `forget`."""

    def __init__(self, reader: AsyncReader, throttle: AuthThrottle, seconds: float = SECONDS) -> None:
        self._reader, self._throttle, self._seconds = reader, throttle, seconds
        self._verified: dict[_Credential, _Verified] = {}  # in the order of their checks
        self._checks = RequestCoalescer(self._check, max_group_size=_MOST_CHECKED, semaphore=reader.semaphore)

    async def close(self) -> None:
        """Close the connection; a later look-up opens it again."""
        await self._reader.close()

    def remembered(self, secret: str) -> Principal | None:
        """The cached Principal of this key, if any. Queries nothing."""
        verified = self._verified.get(_credential(secret))
        if verified is None or time.monotonic() >= verified.until:
            return None
        verified.used = True
        return verified.principal

    async def ask(self, secret: str, address: str) -> KeyCheck:
        """Look the key up in the database. Raises TooManyFailures, without a query, if the caller's address sent too many wrong
        keys."""
        async with self._throttle.attempt(address, secret) as attempt:
            found = await self._checks.submit(_EVERYBODY, _credential(secret))
            check = found if found is not None else OVER if is_session(secret) else UNKNOWN
            attempt.failed = check.principal is None
            return check

    async def _check(self, _: str, asked: list[_Credential]) -> dict[_Credential, KeyCheck]:
        """Look these credentials up, and those that are due; caches the valid ones, each at most until it expires."""
        began, verified = time.monotonic(), self._verified  # the dict from before the query: `forget` replaces it
        due = list(dict.fromkeys([*asked, *self._due(verified, began)]))
        found = await self._look_up(due)
        for credential in due:
            verified.pop(credential, None)
        for credential, check in found.items():
            if check.principal is not None:
                lasts = self._seconds if check.seconds_left is None else min(self._seconds, check.seconds_left)
                if len(verified) >= _MOST:
                    verified.clear()
                verified[credential] = _Verified(check.principal, began + lasts)
        return found

    def _due(self, verified: dict[_Credential, _Verified], now: float) -> list[_Credential]:
        """Used credentials whose entries expire in less than half of the cache's time. Drops unused ones that have expired."""
        soon = now + self._seconds / 2
        near = list(islice(takewhile(lambda item: item[1].until <= soon, verified.items()), _MOST_CHECKED))
        for credential, one in near:
            if one.until <= now and not one.used:
                del verified[credential]
        return [credential for credential, one in near if one.used]

    async def _look_up(self, credentials: Iterable[_Credential]) -> dict[_Credential, KeyCheck]:
        found: dict[_Credential, KeyCheck] = {}
        for of_session, statement, check in ((False, CHECK_KEYS, _key_check), (True, CHECK_SESSIONS, session_check)):
            hashes = [hash for session, hash in credentials if session is of_session]
            if hashes:
                rows = await (await self._reader.look_alone(statement, {"hashes": hashes})).fetchall()
                found |= {(of_session, row.hash): check(row) for row in rows}
        return found

    def forget(self) -> None:
        """Clear the cache after a revocation. Any thread may call it."""
        self._verified = {}

    def heard(self, notices: Iterable[str]) -> None:
        """Clear the cache if any process of the service took rights away."""
        if RIGHTS_CHANGED in notices:
            self.forget()


def _key_check(row: Any) -> KeyCheck:
    return key_check(row, row.key_left)


def _credential(secret: str) -> _Credential:
    return is_session(secret), hash_of(secret)
