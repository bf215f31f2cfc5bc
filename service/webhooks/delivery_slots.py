"""Concurrency limits of a courier's deliveries, per tenant and per webhook. Pure values; sends nothing.

A delivery in flight holds a slot. A hanging receiver holds it until the timeout, so a webhook that answered late or not at all
counts as slow: it may hold one slot, those of a tenant two, and all slow webhooks together 8 of 32, which leaves slots for
receivers that answer, and for other tenants' messages that are tried again.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice

SLOTS = 32
OF_TENANT, OF_WEBHOOK = 8, 4  # at most, of these slots
OF_SLOW = 8  # for all slow webhooks together, one each,
OF_TENANTS_SLOW = 2  # and for those of a tenant
_MOST = 10_000  # slow webhooks remembered


@dataclass(frozen=True)
class Due:
    """A due message. `failed`: an earlier attempt failed."""

    id: str
    tenant: str
    webhook: str
    failed: bool = False


class DeliverySlots:
    """The slots held and the webhooks that were slow lately. Not thread-safe."""

    def __init__(self) -> None:
        self._held: dict[str, tuple[Due, bool]] = {}  # by message id; True: it holds a slow webhook's slot
        self._slow: set[str] = set()

    def __len__(self) -> int:
        return len(self._held)

    def take(self, wanted: Iterable[Due], most: int) -> list[Due]:
        """Give slots, at most so many, in this order, to the messages that the limits allow; returns those."""
        return list(islice((one for one in wanted if self._take(one)), most))

    def give_back(self, one: Due, slow: bool) -> None:
        """Free the slot after an attempt. `slow`: the receiver took long, whether it answered or not."""
        del self._held[one.id]
        if not slow:
            self._slow.discard(one.webhook)
        elif len(self._slow) < _MOST:
            self._slow.add(one.webhook)

    def leave(self, one: Due) -> None:
        """Free the slot of a message that was not sent, since another courier has taken it."""
        del self._held[one.id]

    @property
    def no_slow(self) -> bool:
        """Whether slow webhooks hold all their slots, so that none is left for them."""
        return sum(slow for _, slow in self._held.values()) >= OF_SLOW

    def closed(self) -> tuple[list[str], list[str]]:
        """Tenants and webhooks that may get no slot now."""
        tenants = Counter(one.tenant for one, _ in self._held.values())
        webhooks = Counter(one.webhook for one, _ in self._held.values())
        full = {one for one, slots in webhooks.items() if slots >= OF_WEBHOOK}
        slow = self._slow if self.no_slow else self._slow & webhooks.keys()
        return [one for one, slots in tenants.items() if slots >= OF_TENANT], sorted(full | slow)

    def _take(self, one: Due) -> bool:
        tenants, webhooks = self.closed()
        if one.id in self._held or one.tenant in tenants or one.webhook in webhooks:
            return False
        slow = one.failed or one.webhook in self._slow
        beside = [held for held, is_slow in self._held.values() if is_slow and held.tenant == one.tenant] if slow else []
        if len(beside) >= OF_TENANTS_SLOW or any(held.webhook == one.webhook for held in beside) or (slow and self.no_slow):
            return False
        self._held[one.id] = one, slow
        return True
