"""Seeded faults for a whole stack: every program killed, a node stopped past its lease, Valkey emptied, Postgres killed.

Knows no tasks: it hurts, counts what it did, and heals what it stopped.
"""

import os
import random
import signal
import threading
from collections import Counter
from collections.abc import Callable

import redis

from tests.walk.running_stack import RunningStack

_PROGRAMS = ("api", "queue", "reconcile", "valkey", "postgres")


class Chaos:
    """Faults from one seed, `apart` seconds between two of them at least. `workers` are the nodes that are hurt."""

    def __init__(self, motet: RunningStack, seed: int, workers: tuple[str, ...], apart: float, asleep: float) -> None:
        self._motet, self._random, self._workers = motet, random.Random(seed), workers
        self._apart, self._asleep = apart, asleep
        self._stop = threading.Event()
        self.done: Counter[str] = Counter()
        self._faults: dict[str, Callable[[], None]] = {
            **{f"kill {name}": (lambda name=name: self._kill(motet.pids[name])) for name in _PROGRAMS},
            "kill worker": lambda: self._kill(motet.pids[self._worker()]),
            "kill executor": lambda: self._kill_below("worker.executor"),
            "kill heartbeat": lambda: self._kill_below("worker.node.heartbeat"),
            "stop a node past its lease": self._sleep_past_the_lease,
            "FLUSHALL": self._flush,
        }

    @property
    def kinds(self) -> int:
        return len(self._faults)

    def wreak(self, faults: int) -> None:
        """So many faults, one after another: each kind once in a random order, then anew."""
        order: list[str] = []
        for _ in range(faults):
            if not order:
                order = self._random.sample(sorted(self._faults), len(self._faults))
            name = order.pop()
            self._faults[name]()
            self.done[name] += 1
            self._stop.wait(self._apart * self._random.uniform(0.5, 1.5))

    def _worker(self) -> str:
        return self._random.choice(self._workers)

    def _kill(self, pid: int) -> None:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            return  # it is between two starts already

    def _kill_below(self, module: str) -> None:
        for pid in self._motet.below(self._worker(), module)[:1]:
            self._kill(pid)

    def _sleep_past_the_lease(self) -> None:
        worker = self._worker()
        family = [self._motet.pids[worker]]
        for module in ("worker.node.heartbeat", "worker.executor"):
            family += self._motet.below(worker, module)
        self._signal(family, signal.SIGSTOP)
        self._stop.wait(self._asleep)
        self._signal(reversed(family), signal.SIGCONT)

    def _signal(self, pids: "list[int] | reversed[int]", number: signal.Signals) -> None:
        for pid in pids:
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                continue

    def _flush(self) -> None:
        try:
            with self._motet.valkey as valkey:
                valkey.flushall()
        except redis.RedisError:
            return  # it was killed just before, which empties it too
