"""What a planner worked out about tasks that have not moved since: kept in its process, gone with it, never the truth."""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import TypeVar

V = TypeVar("V")
_MOST = 50_000  # things remembered


class Memo:
    """Values by all that they depend on; the ones longest unused go first. For one thread at a time."""

    def __init__(self) -> None:
        self._known: OrderedDict[Hashable, object] = OrderedDict()

    def __contains__(self, key: Hashable) -> bool:
        return key in self._known

    def get(self, key: Hashable, make: Callable[[], V]) -> V:
        """The value for `key`, made if it is not known."""
        if key in self._known:
            self._known.move_to_end(key)
        else:
            self._known[key] = make()
            if len(self._known) > _MOST:
                self._known.popitem(last=False)
        return self._known[key]  # type: ignore[return-value]

    def clear(self) -> None:
        """Forget it all."""
        self._known.clear()
