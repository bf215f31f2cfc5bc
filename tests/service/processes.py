"""The API as a process of its own, for what only a process shows: memory, signals, sockets."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import httpx

from service.settings import Settings
from tests.service.live_server import PATIENCE


@dataclass(frozen=True)
class Api:
    process: subprocess.Popen[bytes]
    url: str


@contextmanager
def serving(settings: Settings, environment: dict[str, str], log: Path) -> Iterator[Api]:
    """`python -m service api`, from when it is ready; killed on the way out if it still runs."""
    with log.open("wb") as output:
        command = [sys.executable, "-m", "service", "api"]
        process = subprocess.Popen(command, env=environment, stdout=output, stderr=output)
    try:
        _wait_until_ready(process, settings.api_url, log)
        yield Api(process, settings.api_url)
    finally:
        process.kill()
        process.wait()


def _wait_until_ready(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    pause = threading.Event()
    with httpx.Client(timeout=PATIENCE) as client:  # one for all tries: each new one reads the system's certificates
        while process.poll() is None:
            with suppress(httpx.TransportError):
                if client.get(f"{url}/readyz").status_code == 200:
                    return
            pause.wait(0.05)
    raise AssertionError(f"the API ended with {process.returncode}: {log.read_text()}")
