"""Questions that come at once, answered from one read: it begins after the last of them came, so no answer is older than its
question. While a read runs, who asks waits for the next one. Knows nothing of what is read.

Only the event loop may call this; a request that waits holds neither a thread nor a database connection.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from starlette.concurrency import run_in_threadpool

from service.db import Database
from service.tenants.keys import Principal

_MOST = 10_000  # tenants whose last read is remembered

Found = TypeVar("Found")
Read = Callable[[Database, Principal, frozenset[str]], Mapping[str, Found]]


@dataclass(frozen=True)
class _Gathering(Generic[Found]):
    """A read that has not begun: whoever asks joins it."""

    ids: set[str]
    read: asyncio.Task[Mapping[str, Found]]


class Together(Generic[Found]):
    """`read` looks up ids of one tenant, in a thread. `apart`: seconds from one read of a tenant to the next at the least."""

    def __init__(self, read: Read[Found], apart: float = 0.0) -> None:
        self._look, self._apart = read, apart
        self._gathering: dict[str, _Gathering[Found]] = {}  # by tenant
        self._reading: dict[str, asyncio.Task[Mapping[str, Found]]] = {}
        self._began: dict[str, float] = {}  # when the last read of a tenant did

    async def ask(self, db: Database, principal: Principal, id: str) -> Found | None:
        """What is found of the caller's id, whose `db` it is; None where there is nothing."""
        tenant = principal.tenant_id
        gathering = self._gathering.get(tenant)
        if gathering is None:
            ids: set[str] = set()
            gathering = _Gathering(ids, asyncio.ensure_future(self._read(db, principal, ids, self._reading.get(tenant))))
            self._gathering[tenant] = gathering
        gathering.ids.add(id)
        return (await asyncio.shield(gathering.read)).get(id)

    async def _read(
        self, db: Database, principal: Principal, ids: set[str], before: asyncio.Task[Mapping[str, Found]] | None
    ) -> Mapping[str, Found]:
        """Begin once the read before this one has ended, and not at once after it began, for all who have asked by then."""
        if before is not None:
            await asyncio.wait([before])
        tenant, loop = principal.tenant_id, asyncio.get_running_loop()
        if (early := self._began.get(tenant, 0.0) + self._apart - loop.time()) > 0:
            await asyncio.sleep(early)
        if len(self._began) >= _MOST:
            self._began.clear()
        self._began[tenant] = loop.time()
        self._reading[tenant] = self._gathering.pop(tenant).read
        try:
            return await run_in_threadpool(self._look, db, principal, frozenset(ids))
        finally:
            del self._reading[tenant]
