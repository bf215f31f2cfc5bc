"""Stop strings in a text that arrives in chunks, wherever they are cut. Pure: knows no tokens."""

from collections.abc import Sequence


class StopMatcher:
    """Finds the stop string that begins first. Text that may still be the beginning of one is held back."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._certain: list[str] = []
        self._held = ""
        self.matched = False

    def push(self, chunk: str) -> str:
        """Take the next chunk; returns the text that no stop string can touch any more. After a match nothing is taken."""
        if self.matched or not chunk:
            return ""
        text = self._held + chunk
        found = [at for at in (text.find(stop) for stop in self._stops) if at >= 0]
        if found:
            self.matched = True
            certain, self._held = text[: min(found)], ""
        else:
            keep = self._beginning(text)
            certain, self._held = text[: len(text) - keep], text[len(text) - keep :]
        self._certain.append(certain)
        return certain

    def text(self) -> str:
        """All text up to the first stop string, or whole."""
        return "".join(self._certain) + self._held

    def certain(self) -> str:
        """The text that no stop string can touch any more."""
        return "".join(self._certain)

    def _beginning(self, text: str) -> int:
        """Length of the longest end of the text that begins a stop string."""
        longest = max((len(stop) for stop in self._stops), default=1) - 1
        for size in range(min(longest, len(text)), 0, -1):
            if any(stop.startswith(text[-size:]) for stop in self._stops):
                return size
        return 0
