"""Splits an executor loop's wall time by activity, and records its training passes. Does not change the executor."""

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from worker.adapters.tiered_adapter_store import AdapterStore
from worker.executor.checkpoint_policy import CheckpointPolicy
from worker.executor.training_loop import Executor
from worker.model.cuda.device_trainer import DeviceTrainer
from worker.model.flat_batch import Segment

TRAINING, EVALUATION, PARKING, LOADING, STORING, OTHER = "training", "evaluation", "parking", "loading", "storing", "other"
_WATCHED: tuple[tuple[type, str, str], ...] = (
    (Executor, "_run_inbox", STORING),  # until the first step it waits for the base: see `_begins`
    (Executor, "_opened", EVALUATION),  # the base's own validation loss
    (Executor, "_step", TRAINING),
    (Executor, "_evaluate_due", EVALUATION),
    (AdapterStore, "allocate_rows", PARKING),
    (AdapterStore, "park", PARKING),
    (AdapterStore, "note_best", PARKING),
    (CheckpointPolicy, "take", PARKING),
)
_SAMPLED = 40  # one of so many training passes is stored, to be measured again alone


class Stopwatch:
    """seconds: the loop thread's time by part, counted once. passes: number of training passes; tokens: their total; sampled:
    some of the passes."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self.passes, self.tokens = 0, 0
        self.sampled: list[list[Segment]] = []
        self._stack: list[str] = []
        self._since = 0.0

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Inside this context, executors that run in this thread are measured."""
        self._thread = threading.current_thread()
        kept = [(owner, name, getattr(owner, name)) for owner, name, _ in _WATCHED]
        kept.append((DeviceTrainer, "train", DeviceTrainer.train))
        for (owner, name, original), (_, _, part) in zip(kept, _WATCHED, strict=False):
            setattr(owner, name, self._timed(original, part))
        setattr(DeviceTrainer, "train", self._noted(DeviceTrainer.train))  # noqa: B010  (a type checker forbids the assignment)
        self._enter(OTHER)
        try:
            yield
        finally:
            self._leave()
            for owner, name, original in kept:
                setattr(owner, name, original)

    def _timed(self, original: Callable[..., Any], part: str) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            if threading.current_thread() is not self._thread:
                return original(*args, **kwargs)
            if part == TRAINING and LOADING not in self.seconds:
                self.seconds[LOADING] = self.seconds.pop(STORING, 0.0)
            self._enter(part)
            try:
                return original(*args, **kwargs)
            finally:
                self._leave()

        return timed

    def _noted(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def noted(trainer: DeviceTrainer, segments: Sequence[Segment], recompute: bool = False) -> Any:
            if threading.current_thread() is self._thread:
                if self.passes % _SAMPLED == 0:
                    self.sampled.append(list(segments))
                self.passes += 1
                self.tokens += sum(example.length for segment in segments for example in segment.examples)
            return original(trainer, segments, recompute)

        return noted

    def _enter(self, part: str) -> None:
        now = time.monotonic()
        if self._stack:
            self.seconds[self._stack[-1]] += now - self._since
        self._stack.append(part)
        self._since = now

    def _leave(self) -> None:
        now = time.monotonic()
        self.seconds[self._stack.pop()] += now - self._since
        self._since = now
