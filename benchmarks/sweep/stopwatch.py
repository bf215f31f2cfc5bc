"""Splits an executor loop's wall time by activity, times its passes and updates on the device, and records its training passes.
Does not change the executor."""

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from benchmarks.sweep.device_clock import DeviceClock
from worker.adapters.tiered_adapter_store import AdapterStore
from worker.executor.checkpoint_policy import CheckpointPolicy
from worker.executor.training_loop import Executor
from worker.model.cuda.device_trainer import DeviceTrainer
from worker.model.cuda.pass_graphs import PassGraphs
from worker.model.flat_batch import Segment
from worker.model.plain.trainer import Trainer

TRAINING, EVALUATION, PARKING, LOADING, STORING, OTHER = "training", "evaluation", "parking", "loading", "storing", "other"
_WATCHED: tuple[tuple[type, str, str], ...] = (
    (Executor, "_run_inbox", STORING),  # until the first step it waits for the base: see `_timed`
    (Executor, "_advance_baseline", EVALUATION),  # the base's own validation loss
    (Executor, "_step", TRAINING),
    (Executor, "_evaluate_due", EVALUATION),
    (AdapterStore, "allocate_rows", PARKING),
    (AdapterStore, "park", PARKING),
    (AdapterStore, "note_lowest", PARKING),
    (CheckpointPolicy, "take", PARKING),
)
REPLAYED, LAUNCHED, UPDATED = "replayed passes", "launched passes", "updates"
_ON_DEVICE: tuple[tuple[type, str, str], ...] = (
    (PassGraphs, "_replay", REPLAYED),
    (DeviceTrainer, "launch", LAUNCHED),
    (DeviceTrainer, "_update", UPDATED),
)
_SAMPLED = 40  # one of so many training passes is stored, to be measured again alone


class Stopwatch:
    """seconds: the loop thread's time by part, counted once. device: what the device took for it, by part and kind. passes:
    number of training passes; tokens: their total; sampled: some of the passes."""

    def __init__(self, device: DeviceClock | None = None) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self.device = device or DeviceClock()
        self.passes, self.tokens = 0, 0
        self.sampled: list[list[Segment]] = []
        self._stack: list[str] = []
        self._since = 0.0

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Inside this context, executors that run in this thread are measured."""
        self._thread = threading.current_thread()
        watched: list[tuple[type, str, Callable[..., Any]]] = []
        for owner, name, part in _WATCHED:
            watched.append((owner, name, self._timed(getattr(owner, name), part)))
        for owner, name, kind in _ON_DEVICE:
            watched.append((owner, name, self._on_device(getattr(owner, name), kind)))
        watched.append((Trainer, "train", self._noted(Trainer.train)))
        kept = [(owner, name, getattr(owner, name)) for owner, name, _ in watched]
        for owner, name, measured in watched:
            setattr(owner, name, measured)
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

    def _on_device(self, original: Callable[..., Any], kind: str) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            if threading.current_thread() is not self._thread:
                return original(*args, **kwargs)
            with self.device.span(self._stack[-1], kind):
                return original(*args, **kwargs)

        return timed

    def _noted(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def noted(trainer: Trainer, segments: Sequence[Segment], *args: Any, **kwargs: Any) -> Any:
            if threading.current_thread() is self._thread:
                if self.passes % _SAMPLED == 0:
                    self.sampled.append(list(segments))
                self.passes += 1
                self.tokens += sum(example.length for segment in segments for example in segment.examples)
            return original(trainer, segments, *args, **kwargs)

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
