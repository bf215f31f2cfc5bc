"""Coalesces concurrent requests: those that arrive while a group is in flight share the next one.

A group begins after its last request arrived, so no answer is older than its request. Only the event loop may call this; a
waiting request holds neither a thread nor a database connection. Knows nothing of what a group does.
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

MAX_COOLDOWN_SECONDS = 0.1
_MAX_TENANTS = 10_000  # tenants whose earliest next start is remembered

Item = TypeVar("Item", bound=Hashable)
Result = TypeVar("Result")
ProcessGroup = Callable[[Database, Principal, list[Item]], Awaitable[Mapping[Item, Result]]]


def in_thread(act: Callable[[Database, Principal, list[Item]], Mapping[Item, Result]]) -> ProcessGroup[Item, Result]:
    """Wrap a blocking `act` to run in a thread."""

    async def done(db: Database, principal: Principal, items: list[Item]) -> Mapping[Item, Result]:
        return await run_in_threadpool(act, db, principal, items)

    return done


@dataclass(frozen=True)
class _PendingGroup(Generic[Item, Result]):
    """A group that has not begun: new requests join it until it is full."""

    items: dict[Item, int]  # items in order of arrival, with the number of requests for each
    run: asyncio.Task[Mapping[Item, Result]]


class RequestCoalescer(Generic[Item, Result]):
    """`act` processes one group of one tenant's requests, of at most `max_group_size` items. Each group holds `semaphore` while
    it runs, so that tenants take turns.

    A group starts no earlier than `min_interval_seconds` after the start of the tenant's previous one. If that one had several
    items, it also waits `cooldown_factor` times its duration after its end, at most MAX_COOLDOWN_SECONDS. This leaves the
    process time for other work.
    """

    def __init__(
        self,
        act: ProcessGroup[Item, Result],
        *,
        min_interval_seconds: float = 0.0,
        cooldown_factor: float = 0.0,
        max_group_size: int | None = None,
        semaphore: AbstractAsyncContextManager[Any] = nullcontext(),  # noqa: B008  (it keeps nothing)
    ) -> None:
        self._act, self._semaphore, self._max_group_size = act, semaphore, max_group_size
        self._min_interval_seconds, self._cooldown_factor = min_interval_seconds, cooldown_factor
        self._pending: dict[str, _PendingGroup[Item, Result]] = {}  # by tenant
        self._newest: dict[str, asyncio.Task[Mapping[Item, Result]]] = {}  # by tenant, until it has ended
        self._not_before: dict[str, float] = {}  # by tenant: earliest start of its next group, loop time

    async def submit(self, db: Database, principal: Principal, item: Item) -> Result | None:
        """The group's result for this item; None if it has none. `db` must be the caller's own."""
        tenant = principal.tenant_id
        pending = self._pending.get(tenant)
        if pending is None or len(pending.items) == self._max_group_size:
            items: dict[Item, int] = {}
            run = self._run_group(db, principal, items, self._newest.get(tenant))
            # an empty context: the group must not run in the context of its first request
            pending = _PendingGroup(items, asyncio.create_task(run, context=Context()))
            self._pending[tenant], self._newest[tenant] = pending, pending.run
        pending.items[item] = pending.items.get(item, 0) + 1
        try:
            return (await asyncio.shield(pending.run)).get(item)
        except asyncio.CancelledError:
            pending.items[item] -= 1  # a group that has not begun leaves the item out
            raise

    async def _run_group(
        self, db: Database, principal: Principal, items: dict[Item, int], before: asyncio.Task[Mapping[Item, Result]] | None
    ) -> Mapping[Item, Result]:
        """Run the group once the tenant's previous one has ended, with every item submitted until then."""
        tenant, loop = principal.tenant_id, asyncio.get_running_loop()
        try:
            if before is not None:
                await asyncio.wait([before])
            early = self._not_before.get(tenant, 0.0) - loop.time()
            if early > 0:
                await asyncio.sleep(early)
            async with self._semaphore:
                self._seal(tenant, items)
                group, began = [item for item, waiters in items.items() if waiters], loop.time()
                try:
                    return await self._act(db, principal, group) if group else {}
                finally:
                    ended, factor = loop.time(), self._cooldown_factor if len(group) > 1 else 0.0
                    rested = ended + min(factor * (ended - began), MAX_COOLDOWN_SECONDS)
                    self._defer(tenant, max(rested, began + self._min_interval_seconds))
        finally:
            self._seal(tenant, items)
            if self._newest.get(tenant) is asyncio.current_task():
                del self._newest[tenant]

    def _seal(self, tenant: str, items: dict[Item, int]) -> None:
        """Let no further request join this group."""
        pending = self._pending.get(tenant)
        if pending is not None and pending.items is items:
            del self._pending[tenant]

    def _defer(self, tenant: str, until: float) -> None:
        if len(self._not_before) >= _MAX_TENANTS:
            self._not_before.clear()
        self._not_before[tenant] = until
