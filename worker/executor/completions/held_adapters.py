"""Adapters that requests ask, in rows of the first replica's arena: shared by the requests of one adapter, and kept for the
next one while there is room, the least recently used dropped first. Trains nothing."""

from collections import OrderedDict
from dataclasses import dataclass

from worker.adapters.arena_growth import NoRows
from worker.model.arena import Slot
from worker.replicas.replica_set import Replicas
from worker.replicas.text_generation import AdapterWeights

MOST_IDLE = 16  # adapters kept that nobody asks at the moment


@dataclass
class _Held:
    slot: Slot
    uses: int = 0
    keep: bool = True  # once nobody asks it


class HeldAdapters:
    """Of one base: another has its own."""

    def __init__(self) -> None:
        self._held: OrderedDict[str, _Held] = OrderedDict()

    def __contains__(self, key: str) -> bool:
        return key in self._held

    def __len__(self) -> int:
        return len(self._held)

    def use(self, replicas: Replicas, key: str, adapter: AdapterWeights) -> Slot:
        """Rows with this adapter until `release`. Raises NoRows."""
        held = self._held.get(key)
        if held is None:
            held = self._held[key] = _Held(self._slot(replicas, adapter))
        held.uses += 1
        self._held.move_to_end(key)
        return held.slot

    def _slot(self, replicas: Replicas, adapter: AdapterWeights) -> Slot:
        while True:
            try:
                return replicas.hold(adapter.weights, adapter.alpha)
            except NoRows:
                if not self._drop_oldest(replicas):
                    raise

    def release(self, replicas: Replicas, key: str, keep: bool) -> None:
        """One request fewer asks this adapter. keep: whether its rows may stay for the next one; otherwise they are freed once
        nobody asks it."""
        held = self._held[key]
        held.uses -= 1
        held.keep &= keep
        if not held.uses and not held.keep:
            replicas.first.adapters.drop(self._held.pop(key).slot)
        while sum(1 for held in self._held.values() if not held.uses) > MOST_IDLE:
            self._drop_oldest(replicas)

    def drop_idle(self, replicas: Replicas) -> bool:
        """Free the rows of all that nobody asks. Whether there were any."""
        dropped = False
        while self._drop_oldest(replicas):
            dropped = True
        return dropped

    def _drop_oldest(self, replicas: Replicas) -> bool:
        key = next((key for key, held in self._held.items() if not held.uses), None)
        if key is None:
            return False
        replicas.first.adapters.drop(self._held.pop(key).slot)
        return True
