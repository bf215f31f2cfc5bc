"""Coalesces concurrent requests: those that arrive while a batch is in flight share the next one.

A batch begins after the last of its requests arrived, so no answer is older than its request. Knows nothing of what a batch
does. Only the event loop may call this; a waiting request holds neither a thread nor a database connection.
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
_MANY = 10_000  # tenants whose last go is remembered

Asked = TypeVar("Asked", bound=Hashable)
Found = TypeVar("Found")
Act = Callable[[Database, Principal, list[Asked]], Awaitable[Mapping[Asked, Found]]]


def in_thread(act: Callable[[Database, Principal, list[Asked]], Mapping[Asked, Found]]) -> Act[Asked, Found]:
    """The act, done in a thread."""

    async def done(db: Database, principal: Principal, asked: list[Asked]) -> Mapping[Asked, Found]:
        return await run_in_threadpool(act, db, principal, asked)

    return done


@dataclass(frozen=True)
class _PendingBatch(Generic[Asked, Found]):
    """A go that has not begun: whoever asks joins it, until it is full."""

    asked: dict[Asked, int]  # in the order they came, and by how many
    go: asyncio.Task[Mapping[Asked, Found]]


class RequestCoalescer(Generic[Asked, Found]):
    """`act` sees to what is asked for one tenant: no more than `most` in one go. `turn`: what each go holds while
    it goes on, so that tenants take turns.

    A go waits until `apart` seconds after the tenant's last one began, and, where that one saw to several, until `rest` times
    as long as it took has passed since, but no longer than LONGEST_REST: meanwhile the process is there for others.
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
        self._not_before: dict[str, float] = {}  # by tenant, for its next go

    async def ask(self, db: Database, principal: Principal, one: Asked) -> Found | None:
        """What comes of it for the caller, whose `db` it is; None where nothing does."""
        tenant = principal.tenant_id
        gathering = self._gathering.get(tenant)
        if gathering is None or len(gathering.asked) == self._most:
            asked: dict[Asked, int] = {}
            go = self._go(db, principal, asked, self._newest.get(tenant))
            gathering = _PendingBatch(asked, asyncio.create_task(go, context=Context()))  # it is no one request's
            self._gathering[tenant], self._newest[tenant] = gathering, gathering.go
        gathering.asked[one] = gathering.asked.get(one, 0) + 1
        try:
            return (await asyncio.shield(gathering.go)).get(one)
        except asyncio.CancelledError:
            gathering.asked[one] -= 1  # a go that has not begun leaves it out
            raise

    async def _go(
        self, db: Database, principal: Principal, asked: dict[Asked, int], before: asyncio.Task[Mapping[Asked, Found]] | None
    ) -> Mapping[Asked, Found]:
        """Begin once the go before this one has ended, for all who have asked by then."""
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
        """Nobody joins any more."""
        gathering = self._gathering.get(tenant)
        if gathering is not None and gathering.asked is asked:
            del self._gathering[tenant]

    def _put_off(self, tenant: str, until: float) -> None:
        if len(self._not_before) >= _MANY:
            self._not_before.clear()
        self._not_before[tenant] = until
