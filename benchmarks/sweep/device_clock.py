"""Seconds that the device spends on pieces of work, by kind, between CUDA events. Waits for the device only where it is asked
for the sums."""

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch


def _event() -> Any:
    return torch.cuda.Event(enable_timing=True)


def _capturing() -> bool:
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()


class DeviceClock:
    """`event` makes an object like torch.cuda.Event. A span ends when its last kernel does, and begins when the device reaches
    it: of work that is launched kernel by kernel it holds the device's waits for the host in between, of a replayed graph
    none. A replayed pass is two graphs, between which its head is launched.
    """

    def __init__(self, event: Callable[[], Any] = _event) -> None:
        self._event = event
        self._spans: dict[tuple[str, str], list[tuple[Any, Any]]] = defaultdict(list)

    @contextmanager
    def span(self, part: str, kind: str) -> Iterator[None]:
        """Times what is launched inside on the current stream. What a graph records meanwhile does not run, and is left out."""
        if _capturing():
            yield
            return
        begin, end = self._event(), self._event()
        begin.record()
        yield
        end.record()
        self._spans[part, kind].append((begin, end))

    def counts(self) -> dict[tuple[str, str], int]:
        """Number of spans by (part, kind)."""
        return {key: len(spans) for key, spans in self._spans.items()}

    def seconds(self) -> dict[tuple[str, str], float]:
        """Their time by (part, kind). Waits for the last of each."""
        found = {}
        for key, spans in self._spans.items():
            spans[-1][1].synchronize()
            found[key] = sum(begin.elapsed_time(end) for begin, end in spans) / 1e3
        return found
