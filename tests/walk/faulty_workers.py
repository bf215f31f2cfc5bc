"""Bad company for a healthy stack: executors that die on bad nodes or of bad tasks, and a worker of before capabilities."""

import os
import re
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

from deploy.devstack.process_reaper import MARK
from tests.walk.running_stack import RunningStack

_ATTACHED = re.compile(r"of task (\S+) \(.*\) goes to executor pid (\d+)")
_LOOK_SECONDS = 0.1

# It registers without capabilities, its heartbeats do not say what it acted upon, and the thread that asks what to run dies,
# unnoticed, of the first placement: what a worker of 0.1.0 does with a field that it does not know. It starts no executors.
_OLD_WORKER = """
import sys
import worker.__main__ as program
from worker.node.executor_pool import ExecutorPool
from worker.api_client import NodeLink
from worker.node.node_registration import NodeMembership

asks, joins, beats = NodeLink.desired, NodeLink.register, NodeMembership.pulse

def register(self, token, said):
    return joins(self, token, said.model_copy(update={"capabilities": None}))

def desired(self, node_id, credential):
    state, unread = asks(self, node_id, credential)
    if state.placements or unread:
        raise ValueError("Extra inputs are not permitted")
    return state, unread

NodeLink.register, NodeLink.desired = register, desired
NodeMembership.pulse = lambda self, said: beats(self, said.model_copy(update={"applied_version": None}))
ExecutorPool.maintain = lambda self, now: None
program.end_process_with_its_threads = lambda: None
sys.exit(program.main())
"""


class Killer:
    """Kills executors some time after they were given a placement: all on the nodes `on`, and everywhere those of `tasks`."""

    def __init__(self, motet: RunningStack, on: set[str], seconds: float = 1.0) -> None:
        self._motet, self._on, self._seconds = motet, on, seconds
        self.tasks: set[str] = set()
        self.killed: list[tuple[str, str]] = []  # (node, task)
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._follow, args=[name], daemon=True) for name in motet.pids if name.startswith("worker")
        ]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _follow(self, name: str) -> None:
        with self._motet.log(name).open() as log:
            log.seek(0, os.SEEK_END)
            while not self._stop.wait(_LOOK_SECONDS):
                for line in log:
                    if found := _ATTACHED.search(line):
                        self._consider(name, found[1], int(found[2]))

    def _consider(self, name: str, task: str, pid: int) -> None:
        if (name not in self._on and task not in self.tasks) or self._stop.wait(self._seconds):
            return
        if pid in self._motet.below(name, "worker.executor"):
            with suppress(ProcessLookupError):  # it has just ended by itself
                os.kill(pid, signal.SIGKILL)
                self.killed.append((name, task))


class OldWorker:
    """A node called `old`, which looks alive and takes nothing up."""

    def __init__(self, motet: RunningStack, folder: Path) -> None:
        environment = motet.environment("worker") | {"MOTET_NODE_NAME": "old", "MOTET_JOIN_TOKEN": motet.join_token("old")}
        del environment[MARK]  # the stack ends what carries it whenever it starts its own worker anew
        with (folder / "old.log").open("wb") as log:
            command = [sys.executable, "-c", _OLD_WORKER]
            self._process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()
