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

MAX_COOLDOWN_SECONDS = 0.1
_MAX_OWNERS = 10_000  # owners whose earliest next start is remembered

Owner = TypeVar("Owner", bound=Hashable)
Item = TypeVar("Item", bound=Hashable)
Result = TypeVar("Result")
ProcessGroup = Callable[[Owner, list[Item]], Awaitable[Mapping[Item, Result]]]


def in_thread(act: Callable[[Owner, list[Item]], Mapping[Item, Result]]) -> ProcessGroup[Owner, Item, Result]:
    """Wrap a blocking `act` to run in a thread."""

    async def done(owner: Owner, items: list[Item]) -> Mapping[Item, Result]:
        return await run_in_threadpool(act, owner, items)

    return done


@dataclass(frozen=True)
class _PendingGroup(Generic[Item, Result]):
    """A group that has not begun: new requests join it until it is full."""

    items: dict[Item, int]  # items in order of arrival, with the number of requests for each
    run: asyncio.Task[Mapping[Item, Result]]


class RequestCoalescer(Generic[Owner, Item, Result]):
    """`act` processes one group of one owner's requests, of at most `max_group_size` items. The owner is a tenant, or one for
    all of them where each item names its tenant. Each group holds `semaphore` while it runs, so that owners take turns.

    A group starts no earlier than `min_interval_seconds` after the start of the owner's previous one. If that one had several
    items, it also waits `cooldown_factor` times its duration after its end, at most MAX_COOLDOWN_SECONDS. This leaves the
    process time for other work.
    """

    def __init__(
        self,
        act: ProcessGroup[Owner, Item, Result],
        *,
        min_interval_seconds: float = 0.0,
        cooldown_factor: float = 0.0,
        max_group_size: int | None = None,
        semaphore: AbstractAsyncContextManager[Any] = nullcontext(),  # noqa: B008  (it keeps nothing)
    ) -> None:
        self._act, self._semaphore, self._max_group_size = act, semaphore, max_group_size
        self._min_interval_seconds, self._cooldown_factor = min_interval_seconds, cooldown_factor
        self._pending: dict[Owner, _PendingGroup[Item, Result]] = {}
        self._newest: dict[Owner, asyncio.Task[Mapping[Item, Result]]] = {}  # until it has ended
        self._not_before: dict[Owner, float] = {}  # earliest start of the owner's next group, loop time

    async def submit(self, owner: Owner, item: Item) -> Result | None:
        """The group's result for this item; None if it has none."""
        pending = self._pending.get(owner)
        if pending is None or len(pending.items) == self._max_group_size:
            items: dict[Item, int] = {}
            run = self._run_group(owner, items, self._newest.get(owner))
            # an empty context: the group must not run in the context of its first request
            pending = _PendingGroup(items, asyncio.create_task(run, context=Context()))
            self._pending[owner], self._newest[owner] = pending, pending.run
        pending.items[item] = pending.items.get(item, 0) + 1
        try:
            return (await asyncio.shield(pending.run)).get(item)
        except asyncio.CancelledError:
            pending.items[item] -= 1  # a group that has not begun leaves the item out
            raise

    async def _run_group(
        self, owner: Owner, items: dict[Item, int], before: asyncio.Task[Mapping[Item, Result]] | None
    ) -> Mapping[Item, Result]:
        """Run the group once the owner's previous one has ended, with every item submitted until then."""
        loop = asyncio.get_running_loop()
        try:
            if before is not None:
                await asyncio.wait([before])
            early = self._not_before.get(owner, 0.0) - loop.time()
            if early > 0:
                await asyncio.sleep(early)
            async with self._semaphore:
                self._seal(owner, items)
                group, began = [item for item, waiters in items.items() if waiters], loop.time()
                try:
                    return await self._act(owner, group) if group else {}
                finally:
                    ended, factor = loop.time(), self._cooldown_factor if len(group) > 1 else 0.0
                    rested = ended + min(factor * (ended - began), MAX_COOLDOWN_SECONDS)
                    self._defer(owner, max(rested, began + self._min_interval_seconds))
        finally:
            self._seal(owner, items)
            if self._newest.get(owner) is asyncio.current_task():
                del self._newest[owner]

    def _seal(self, owner: Owner, items: dict[Item, int]) -> None:
        """Let no further request join this group."""
        pending = self._pending.get(owner)
        if pending is not None and pending.items is items:
            del self._pending[owner]

    def _defer(self, owner: Owner, until: float) -> None:
        if len(self._not_before) >= _MAX_OWNERS:
            self._not_before.clear()
        self._not_before[owner] = until
