"""Brings a tenant's objects to this node, and gives up on those that come with other bytes again and again. Knows no leases."""

from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

from worker.api_client import Unreachable
from worker.data.node_cache import NodeCache
from worker.data.object_cache import ObjectCache, WrongBytes

_WRONG = 2  # times that an object may come with wrong bytes: a cut may do that, a damaged copy always does


class DamagedObject(ValueError):
    """Storage holds other bytes than the object's sha256 says, and a retry would not help."""


class ObjectFetch:
    """cache: evicted where the disk is full."""

    def __init__(self, cache: NodeCache) -> None:
        self._cache, self._wrong = cache, Counter[str]()

    def fetch(self, folder: Callable[[], ObjectCache], sha256: str, blocks: Callable[[], Iterable[bytes]]) -> Path:
        """The object in `folder()`. Raises Unreachable and DiskFull, after which another attempt may succeed, and
        DamagedObject."""
        try:
            with self._cache.relief():
                return folder().fetch(sha256, blocks)
        except WrongBytes as error:
            self._wrong[sha256] += 1
            if self._wrong[sha256] >= _WRONG:
                raise DamagedObject(
                    f"an object came with other bytes than it should have, {_WRONG} times: {error}; storage holds a damaged "
                    "copy, restore it from a backup and try again"
                ) from None
            raise Unreachable(str(error)) from None
