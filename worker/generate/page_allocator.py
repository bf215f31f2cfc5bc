"""Free pages of the key-value cache, counted and handed out. Pure: knows no tensors and no sequences.

Page 0 is never handed out: padding writes its keys and values there.
"""

from collections.abc import Sequence


class CacheFullError(Exception):
    """Fewer pages are free than were asked for."""


class PageAllocator:
    def __init__(self, pages: int, page_tokens: int) -> None:
        """pages: of the cache, page 0 included. page_tokens: tokens that a page holds."""
        if pages < 2 or page_tokens < 1:
            raise ValueError(f"a cache of {pages} pages of {page_tokens} tokens holds nothing; it needs 2 pages at least")
        self.page_tokens = page_tokens
        self._free = list(range(pages - 1, 0, -1))
        self._taken: set[int] = set()

    @property
    def free(self) -> int:
        return len(self._free)

    @property
    def total(self) -> int:
        """Pages that sequences may have."""
        return len(self._free) + len(self._taken)

    def pages_for(self, tokens: int) -> int:
        """How many pages hold this many tokens."""
        return -(-tokens // self.page_tokens)

    def take(self, count: int) -> tuple[int, ...]:
        """Pages in no particular order. Raises CacheFullError."""
        if count > len(self._free):
            raise CacheFullError(f"{count} pages were asked for, {len(self._free)} of {self.total} are free")
        taken = tuple(self._free.pop() for _ in range(count))
        self._taken.update(taken)
        return taken

    def give_back(self, pages: Sequence[int]) -> None:
        """Free pages that were taken. Raises ValueError for one that was not."""
        for page in pages:
            if page not in self._taken:
                raise ValueError(f"page {page} was not taken")
            self._taken.remove(page)
            self._free.append(page)
