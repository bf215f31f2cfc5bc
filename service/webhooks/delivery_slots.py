"""Concurrency limits of a courier: fair among tenants, bounded for each tenant and each webhook. Values only; sends nothing.

A message on its way takes a slot. A receiver that hangs keeps its slot until the timeout, so a webhook that answered late or
not at all is slow: it may take one slot, and all slow ones together a part of them. Whoever answers always finds a slot.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

SLOTS = 32
OF_TENANT, OF_WEBHOOK = 8, 4  # of these at most
OF_SLOW = 8  # for all slow webhooks together, one each
_MOST = 10_000  # slow webhooks that are remembered


@dataclass(frozen=True)
class Due:
    """A message whose time has come. `failed`: it was tried before."""

    id: str
    tenant: str
    webhook: str
    failed: bool = False


class DeliverySlots:
    """Who holds slots, and who was slow lately. For one thread at a time."""

    def __init__(self) -> None:
        self._held: dict[str, tuple[Due, bool]] = {}  # by message; whether it took one of the slow ones' slots
        self._slow: set[str] = set()

    def __len__(self) -> int:
        return len(self._held)

    def take(self, wanted: Iterable[Due]) -> list[Due]:
        """Give slots to those of the messages that may have one, in this order."""
        return [one for one in wanted if self._take(one)]

    def give_back(self, one: Due, slow: bool) -> None:
        """Its try is over; `slow` says that its receiver took long, whether it answered or not."""
        del self._held[one.id]
        if not slow:
            self._slow.discard(one.webhook)
        elif len(self._slow) < _MOST:
            self._slow.add(one.webhook)

    def leave(self, one: Due) -> None:
        """It was never sent: somebody else has it in hand."""
        del self._held[one.id]

    @property
    def no_slow(self) -> bool:
        """Whether slow webhooks have all their slots."""
        return sum(slow for _, slow in self._held.values()) >= OF_SLOW

    def closed(self) -> tuple[list[str], list[str]]:
        """Tenants and webhooks that get no slot now."""
        tenants = Counter(one.tenant for one, _ in self._held.values())
        webhooks = Counter(one.webhook for one, _ in self._held.values())
        full = {one for one, slots in webhooks.items() if slots >= OF_WEBHOOK}
        slow = self._slow if self.no_slow else self._slow & webhooks.keys()
        return [one for one, slots in tenants.items() if slots >= OF_TENANT], sorted(full | slow)

    def _take(self, one: Due) -> bool:
        tenants, webhooks = self.closed()
        if len(self._held) >= SLOTS or one.id in self._held or one.tenant in tenants or one.webhook in webhooks:
            return False
        slow = one.failed or one.webhook in self._slow
        if slow and (self.no_slow or any(slow and held.webhook == one.webhook for held, slow in self._held.values())):
            return False
        self._held[one.id] = one, slow
        return True
