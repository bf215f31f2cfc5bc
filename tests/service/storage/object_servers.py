"""Servers that speak S3, each a process on a free port of loopback, with what settings and an environment need to use them."""

import importlib.util
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.free_ports import free_port

_READY_SECONDS = 120.0
KINDS = ("moto", "localbucket")
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "the-key", "AWS_SECRET_ACCESS_KEY": "the-secret"}
BUCKET = "motet-test"


@dataclass
class ObjectServer:
    url: str
    process: subprocess.Popen[bytes]
    bucket: str = BUCKET

    def settings(self, prefix: str = "of/tests", **changes: object) -> dict[str, Any]:
        """The settings of a service that keeps its objects here."""
        where = {"storage_url": f"s3://{self.bucket}/{prefix}", "storage_endpoint": self.url, "storage_region": "us-east-1"}
        return where | {"storage_timeout_seconds": 60, "storage_retries": 3, "storage_dir": None} | changes

    @contextmanager
    def hung(self) -> Iterator[None]:
        """It takes connections and answers nothing."""
        os.kill(self.process.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self.process.pid, signal.SIGCONT)

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()


@contextmanager
def object_server(kind: str, folder: Path, port: int | None = None, **environment: str) -> Iterator[ObjectServer]:
    """`environment`: of the server's process."""
    if importlib.util.find_spec("obstore") is None or importlib.util.find_spec(kind) is None:
        pytest.skip(f"obstore or {kind} is not installed: make install")
    port, data = port or free_port(), folder / "buckets"
    data.mkdir(exist_ok=True)
    command = {
        "moto": [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
        "localbucket": [sys.executable, "-m", "localbucket", str(data), "--port", str(port)],
    }
    with (folder / f"{kind}.log").open("wb") as log:
        process = subprocess.Popen(command[kind], env=os.environ | environment, stdout=log, stderr=log)
    server = ObjectServer(f"http://127.0.0.1:{port}", process)
    try:
        _await(server, folder / f"{kind}.log")
        yield server
    finally:
        server.stop()


def _await(server: ObjectServer, log: Path) -> None:
    """Until its bucket is made, which neither of them asks credentials for."""
    deadline = time.monotonic() + _READY_SECONDS
    with httpx.Client(timeout=_READY_SECONDS) as client:
        while server.process.poll() is None and time.monotonic() < deadline:
            with suppress(httpx.TransportError):
                made = client.put(f"{server.url}/{server.bucket}")
                assert made.status_code in (200, 409), made.text
                return
            time.sleep(0.05)  # polled: a starting server sends no event
    raise AssertionError(f"the object server did not come up: {log.read_text()}")
