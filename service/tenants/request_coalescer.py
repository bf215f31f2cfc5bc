"""Coalesces concurrent requests: those that arrive while a batch is in flight share the next one.

A batch begins after its last request arrived, so no answer is older than its request. Only the event loop may call this; a
waiting request holds neither a thread nor a database connection. Knows nothing of what a batch does.
"""

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from contextvars import Context
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from starlette.concurrency import run_in_threadpool

from service.database.engine import Database
from service.tenants.api_keys import Principal

LONGEST_REST = 0.1  # seconds
_MANY = 10_000  # tenants whose earliest next start is remembered

Asked = TypeVar("Asked", bound=Hashable)
Found = TypeVar("Found")
Act = Callable[[Database, Principal, list[Asked]], Awaitable[Mapping[Asked, Found]]]


def in_thread(act: Callable[[Database, Principal, list[Asked]], Mapping[Asked, Found]]) -> Act[Asked, Found]:
    """Wrap a blocking `act` to run in a thread."""

    async def done(db: Database, principal: Principal, asked: list[Asked]) -> Mapping[Asked, Found]:
        return await run_in_threadpool(act, db, principal, asked)

    return done


@dataclass(frozen=True)
class _PendingBatch(Generic[Asked, Found]):
    """A batch that has not begun: new requests join it until it is full."""

    asked: dict[Asked, int]  # items in order of arrival, with the number of requests for each
    go: asyncio.Task[Mapping[Asked, Found]]


class RequestCoalescer(Generic[Asked, Found]):
    """`act` processes one batch of one tenant, of at most `most` items. Each batch holds `turn` while it runs, so that tenants
    take turns.

    A batch starts no earlier than `apart` seconds after the start of the tenant's previous one. If that one had several items,
    it also waits `rest` times its duration after its end, at most LONGEST_REST: this leaves the process time for other work.
    """

    def __init__(
        self,
        act: Act[Asked, Found],
        *,
        apart: float = 0.0,
        rest: float = 0.0,
        most: int | None = None,
        turn: AbstractAsyncContextManager[Any] = nullcontext(),  # noqa: B008  (it keeps nothing)
    ) -> None:
        self._act, self._apart, self._rest, self._most, self._turn = act, apart, rest, most, turn
        self._gathering: dict[str, _PendingBatch[Asked, Found]] = {}  # by tenant
        self._newest: dict[str, asyncio.Task[Mapping[Asked, Found]]] = {}  # by tenant, until it has ended
        self._not_before: dict[str, float] = {}  # by tenant: earliest start of its next batch, loop time

    async def ask(self, db: Database, principal: Principal, one: Asked) -> Found | None:
        """The batch's result for this item; None if it has none. `db` must be the caller's own."""
        tenant = principal.tenant_id
        gathering = self._gathering.get(tenant)
        if gathering is None or len(gathering.asked) == self._most:
            asked: dict[Asked, int] = {}
            go = self._go(db, principal, asked, self._newest.get(tenant))
            gathering = _PendingBatch(asked, asyncio.create_task(go, context=Context()))  # shared: no one request's context
            self._gathering[tenant], self._newest[tenant] = gathering, gathering.go
        gathering.asked[one] = gathering.asked.get(one, 0) + 1
        try:
            return (await asyncio.shield(gathering.go)).get(one)
        except asyncio.CancelledError:
            gathering.asked[one] -= 1  # a batch that has not begun leaves the item out
            raise

    async def _go(
        self, db: Database, principal: Principal, asked: dict[Asked, int], before: asyncio.Task[Mapping[Asked, Found]] | None
    ) -> Mapping[Asked, Found]:
        """Run the batch once the tenant's previous one has ended, with every item asked for until then."""
        tenant, loop = principal.tenant_id, asyncio.get_running_loop()
        try:
            if before is not None:
                await asyncio.wait([before])
            early = self._not_before.get(tenant, 0.0) - loop.time()
            if early > 0:
                await asyncio.sleep(early)
            async with self._turn:
                self._close(tenant, asked)
                wanted, began = [one for one, askers in asked.items() if askers], loop.time()
                try:
                    return await self._act(db, principal, wanted) if wanted else {}
                finally:
                    ended, rest = loop.time(), self._rest if len(wanted) > 1 else 0.0
                    self._put_off(tenant, max(ended + min(rest * (ended - began), LONGEST_REST), began + self._apart))
        finally:
            self._close(tenant, asked)
            if self._newest.get(tenant) is asyncio.current_task():
                del self._newest[tenant]

    def _close(self, tenant: str, asked: dict[Asked, int]) -> None:
        """Let no further request join this batch."""
        gathering = self._gathering.get(tenant)
        if gathering is not None and gathering.asked is asked:
            del self._gathering[tenant]

    def _put_off(self, tenant: str, until: float) -> None:
        if len(self._not_before) >= _MANY:
            self._not_before.clear()
        self._not_before[tenant] = until
