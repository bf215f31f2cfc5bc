"""The agent of a further host of a node, as a process of this machine that listens at the loopback address."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.free_ports import free_port
from tests.worker.fleet import JOIN_TOKEN
from tests.worker.processes import children, command, gone
from worker.settings import Settings

SECRET = "hosts-" + "s" * 32


def first_host(folder: Path, *addresses: str, secret: str | None = SECRET, node: str = "node") -> Settings:
    """Settings of the daemon of a node that has these further hosts."""
    made = Settings(
        api_url="http://127.0.0.1:1",
        join_token=JOIN_TOKEN,
        node_name=node,
        worker_dir=folder,
        worker_device="cpu",
        worker_hosts=",".join(addresses) or None,
        worker_hosts_secret=secret,
    )
    made.scratch.mkdir(parents=True, exist_ok=True)
    return made


class Agent:
    """`address`: where it listens."""

    def __init__(self, folder: Path, slots: int = 1, secret: str = SECRET, **environment: str) -> None:
        self.address = f"127.0.0.1:{free_port()}"
        own = {
            "MOTET_API_URL": "http://127.0.0.1:1",
            "MOTET_WORKER_DIR": str(folder),
            "MOTET_WORKER_LISTEN": self.address,
            "MOTET_WORKER_HOSTS_SECRET": secret,
            "MOTET_WORKER_DEVICE": "cpu",
            "MOTET_WORKER_SLOTS": str(slots),
            "MOTET_WORKER_THREADS": "1",
        }
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("MOTET_", "MKL_"))}
        self.log = folder / "agent.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "worker.hosts"], env={**kept, **own, **environment}, stderr=log
            )
        until = time.monotonic() + 120
        while "the agent of a further host listens" not in self.log.read_text():  # nobody else could tell
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < until
            time.sleep(0.05)

    def running(self, module: str) -> list[int]:
        """Pids of what it has started that runs `module`."""
        return [pid for pid in children(self.process.pid) if module in command(pid)]

    def end(self) -> None:
        left = children(self.process.pid)
        self.process.kill()
        self.process.wait()
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)  # one that is stopped; or where no kernel ends it with the agent
            assert gone(pid), (pid, command(pid))


@contextmanager
def running_agent(folder: Path, **options: str | int) -> Iterator[Agent]:
    folder.mkdir(parents=True, exist_ok=True)
    it = Agent(folder, **options)  # type: ignore[arg-type]
    try:
        yield it
    finally:
        it.end()
