"""Process supervisor: waits for signals, restarts programs that die, stops them in reverse order. Knows no servers.

Everything happens in the main thread, which sleeps until a signal: SIGCHLD when a child ends; SIGINT, SIGTERM or SIGHUP to
stop, and any of the three again to stop at once.
"""

import select
import signal
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import Any

from deploy.devstack.owned_process import Process, how_it_ended
from deploy.devstack.programs import Program
from deploy.devstack.stack_errors import StackError, died, trouble_of

Emit = Callable[[dict[str, Any]], None]

_STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_FIRST_DELAY, _LONGEST_DELAY, _STEADY_SECONDS = 0.1, 10.0, 30.0
_POLL_SECONDS = 0.05


class StopAsked(Exception):
    """A signal asked for everything to end."""


@dataclass
class Child:
    """A program that should run. `process` is None while it waits for its restart at `due` (monotonic seconds)."""

    program: Program
    process: Process | None
    since: float
    delay: float = _FIRST_DELAY
    due: float = 0.0


class Supervisor:
    """A context manager: inside it the supervisor handles signals, and on exit it stops all programs."""

    def __init__(self, emit: Emit) -> None:
        self._emit = emit
        self._stages: list[list[Child]] = []
        self._stops = 0
        self._wake, self._waker = socket.socketpair()
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> "Supervisor":
        self._wake.setblocking(False)
        self._waker.setblocking(False)
        signal.set_wakeup_fd(self._waker.fileno(), warn_on_full_buffer=False)
        ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN  # as under nohup
        self._before = {number: signal.signal(number, self._on_stop) for number in (_STOPS[:2] if ignored else _STOPS)}
        self._before[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, lambda *_: None)
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._stop_all()
        finally:
            for number, handler in self._before.items():
                signal.signal(number, signal.SIG_DFL if handler is None else handler)
            signal.set_wakeup_fd(-1)
            self._wake.close()
            self._waker.close()

    @property
    def pids(self) -> dict[str, int]:
        """Pids of the programs that run now, by name."""
        return {child.program.name: child.process.pid for child in self._children() if child.process is not None}

    def start(self, *programs: Program) -> None:
        """Start programs concurrently, as one stage: later stages stop before earlier ones."""
        stage: list[Child] = []
        self._stages.append(stage)
        for program in programs:
            self._emit({"event": "starting", "name": program.name})
            stage.append(Child(program, program.start(), time.monotonic()))

    def await_ready(self, program: Program, seconds: float) -> None:
        """Wait until the program is ready. Raises StackError if it dies first or takes too long, StopAsked when told to
        stop."""
        deadline = time.monotonic() + seconds
        while not program.ready():
            self._sleep(_POLL_SECONDS)
            self._check_all_run()
            if time.monotonic() > deadline:
                raise died(program.name, f"is not ready after {seconds:g} s", program.log)
        self._emit({"event": "started", "name": program.name, "pid": self.pids[program.name]})

    def run(self, program: Program) -> None:
        """Run a one-shot program to its end."""
        self._emit({"event": "starting", "name": program.name})
        start = program.log.stat().st_size if program.log.exists() else 0
        child = Child(program, program.start(), time.monotonic())
        self._stages.append([child])
        assert child.process is not None
        while child.process.poll() is None:
            self._sleep(None)
        self._stages.pop()
        if child.process.returncode != 0:
            raise died(program.name, how_it_ended(child.process.returncode), program.log, start)
        self._emit({"event": "finished", "name": program.name})

    def watch(self, on_change: Callable[[], None]) -> None:
        """Restart programs that die, until told to stop. `on_change` is called after each restart."""
        while True:
            now = time.monotonic()
            for child in self._children():
                if child.process is not None and child.process.poll() is not None:
                    self._reap_child(child, how_it_ended(child.process.returncode), now)
                if child.process is None and child.due <= now:
                    self._restart(child, on_change)
            dues = [child.due for child in self._children() if child.process is None]
            self._sleep(max(0.0, min(dues) - time.monotonic()) if dues else None)

    def _reap_child(self, child: Child, how: str, now: float) -> None:
        child.delay = _FIRST_DELAY if now - child.since > _STEADY_SECONDS else min(child.delay * 2, _LONGEST_DELAY)
        child.process, child.due = None, now + child.delay
        self._emit({"event": "died", "name": child.program.name, "how": how, "log": str(child.program.log)})

    def _restart(self, child: Child, on_change: Callable[[], None]) -> None:
        child.since = time.monotonic()
        try:
            child.process = child.program.start()
        except (StackError, OSError) as error:
            trouble = trouble_of(error) if isinstance(error, OSError) else error
            self._reap_child(child, f"cannot start: {trouble.message}", child.since)
            return
        self._emit({"event": "restarted", "name": child.program.name, "pid": child.process.pid})
        on_change()

    def _check_all_run(self) -> None:
        """During the start, any death ends the start: nothing would become ready without that program."""
        for child in self._children():
            if child.process is not None and child.process.poll() is not None:
                raise died(child.program.name, how_it_ended(child.process.returncode), child.program.log)

    def _children(self) -> list[Child]:
        return [child for stage in self._stages for child in stage]

    def _sleep(self, seconds: float | None, heed_stops: bool = True) -> None:
        """Sleep until a signal arrives or `seconds` have passed."""
        if heed_stops and self._stops:
            raise StopAsked
        if select.select([self._wake], [], [], seconds)[0]:
            self._wake.recv(4096)
        if heed_stops and self._stops:
            raise StopAsked

    def _on_stop(self, number: int, frame: FrameType | None) -> None:
        self._stops += 1

    def _stop_all(self) -> None:
        """Stop the stages in reverse order, the programs of a stage together. The first stage, the servers, always gets its
        full time."""
        stops_before = self._stops
        for number, stage in reversed(list(enumerate(self._stages))):
            running = {child.program: child.process for child in stage if child.process is not None}
            for program, process in running.items():
                self._emit({"event": "stopping", "name": program.name})
                process.send_signal(program.asks)
            asked = time.monotonic()
            while running := {program: process for program, process in running.items() if process.poll() is None}:
                hurried = number > 0 and self._stops > stops_before
                for program, process in running.items():
                    if hurried or time.monotonic() - asked > program.patience:
                        process.kill()
                self._sleep(_POLL_SECONDS, heed_stops=False)
        self._stages.clear()
