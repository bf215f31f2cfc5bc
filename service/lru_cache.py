"""In-process cache of estimates for tasks that have not changed. Rows stay the source of truth."""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import TypeVar

V = TypeVar("V")
_MOST = 50_000  # cached values


class LruCache:
    """An LRU cache keyed by all that a value depends on. Not thread-safe."""

    def __init__(self) -> None:
        self._known: OrderedDict[Hashable, object] = OrderedDict()

    def __contains__(self, key: Hashable) -> bool:
        return key in self._known

    def get(self, key: Hashable, make: Callable[[], V]) -> V:
        """The value for `key`; calls `make` on a miss."""
        if key in self._known:
            self._known.move_to_end(key)
        else:
            self._known[key] = make()
            if len(self._known) > _MOST:
                self._known.popitem(last=False)
        return self._known[key]  # type: ignore[return-value]

    def clear(self) -> None:
        """Drop every value."""
        self._known.clear()
