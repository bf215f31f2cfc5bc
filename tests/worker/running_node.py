"""A running daemon with its children for tests, and a fleet API that it joins."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from contract.messages.placement_messages import BaseModelRef, Placement
from tests.worker.corpus import rows
from tests.worker.fleet import JOIN_TOKEN, Fleet
from tests.worker.placer import placer
from tests.worker.processes import children, command, gone, parent, processes
from tests.worker.reported import Reported

Placing = Callable[..., Placement]
PATIENCE = 240.0  # seconds for a process to end


# 9,000 steps: it trains still when a test comes to what it does to it, however fast the machine trains and slow it is otherwise
LONG = {"data": rows(200), "early_exit": {"policy": "none", "eval_every": 500}, "training": {"epochs": 100}}


SHORT = {"early_exit": {"policy": "none"}, "training": {"epochs": 1}}


SPACE = {"learning_rate": [1e-3], "rank": [8], "batch_size": [2]}


# what a developer's shell may say of nodes, and of what nodes set for their executors
_NOT_INHERITED = "MOTET_", "MKL_", "PYTORCH_", "TRITON_CACHE"


class Node:
    """A running `python -m worker`, or a `program` that is one."""

    def __init__(self, fleet: Fleet, folder: Path, program: Sequence[str] = ("-m", "worker"), **environment: str) -> None:
        self.fleet = fleet
        own = {
            "MOTET_API_URL": fleet.url,
            "MOTET_JOIN_TOKEN": JOIN_TOKEN,
            "MOTET_NODE_NAME": "node",
            "MOTET_WORKER_DIR": str(folder),
            "MOTET_WORKER_DEVICE": "cpu",
            "MOTET_WORKER_THREADS": "1",
            "MOTET_WORKER_CHECKPOINT_SECONDS": "3600",  # none but those that a test asks for
            "MOTET_WORKER_STOP_SECONDS": "120",
        }
        kept = {key: value for key, value in os.environ.items() if not key.startswith(_NOT_INHERITED)}
        self.log = folder / "log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen([sys.executable, *program], env={**kept, **own, **environment}, stderr=log)

    def children(self, module: str) -> list[int]:
        """Pids of the daemon's children that run `module`."""
        return [pid for pid in processes() if parent(pid) == self.process.pid and module in command(pid)]

    def child(self, module: str) -> int:
        self.fleet.until(lambda: self.children(module))
        (pid,) = self.children(module)
        return pid

    def ranks(self) -> list[int]:
        """Pids of the processes that executors have for their devices beyond the first."""
        return [rank for pid in self.children("worker.executor") for rank in children(pid)]

    def family(self) -> list[int]:
        found = [self.process.pid, *self.children("worker.node.heartbeat"), *self.children("worker.executor")]
        return [*found, *self.ranks()]

    def end(self) -> None:
        family = self.family()
        self.process.kill()
        self.process.wait()
        for pid in family[1:]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
            assert gone(pid), (pid, command(pid))


@contextmanager
def fleet_with_placements(base: BaseModelRef, folder: Path, **fleet_options: float) -> Iterator[tuple[Fleet, Placing]]:
    fleet = Fleet(**fleet_options)
    try:
        yield fleet, placer(fleet, base)
        assert fleet.refused == []
    finally:
        fleet.close()


@contextmanager
def running(fleet: Fleet, folder: Path, program: Sequence[str] = ("-m", "worker"), **environment: str) -> Iterator[Node]:
    """A daemon that has joined. (What was placed before would be lost with the boot before.)"""
    it = Node(fleet, folder, program, **environment)
    try:
        if not fleet.down:
            fleet.until(lambda: fleet.registrations)
        yield it
    finally:
        it.end()


def await_touch(file: Path, seconds: float = 120.0) -> None:
    """Returns once the file is touched, or made. No request tells of that, so it is looked at."""
    if file.exists():
        os.utime(file, (0, 0))
    until = time.monotonic() + seconds
    while not (file.exists() and file.stat().st_mtime > 0):
        assert time.monotonic() < until, f"{file} is not touched"
        time.sleep(0.05)


def trains(reported: Reported) -> Callable[[], bool]:
    return lambda: bool(reported.curves[0, "train_loss"])


@contextmanager
def refused(fleet: Fleet, folder: Path, **environment: str) -> Iterator[tuple[int, str]]:
    it = Node(fleet, folder, **environment)
    yield it.process.wait(timeout=PATIENCE), it.log.read_text()
