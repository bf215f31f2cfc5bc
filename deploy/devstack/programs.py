"""Programs that the supervisor can run: each has a name, a log, a start and a readiness check. Knows no order and no
restart."""

import http.client
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Protocol

import deploy
from deploy.devstack import process_reaper
from deploy.devstack.owned_process import Process, dying_with_owner, spawn

# children start in the packages' folder, so that the caller's folder cannot shadow them
SOURCE_ROOT = Path(deploy.__path__[0]).resolve().parent


class Program(Protocol):
    """`asks`: the signal that asks it to end; `patience`: seconds until it is killed after that."""

    @property
    def name(self) -> str: ...
    @property
    def log(self) -> Path: ...
    @property
    def asks(self) -> signal.Signals: ...
    @property
    def patience(self) -> float: ...
    def start(self) -> Process: ...
    def ready(self) -> bool: ...


class Module:
    """`python -m words...`, which dies with its owner, along with its own children. `port`: where it answers GET /readyz."""

    asks = signal.SIGTERM

    def __init__(
        self,
        name: str,
        words: list[str],
        log: Path,
        env: Mapping[str, str],
        mark: str,
        port: int | None = None,
        patience: float = 10.0,
    ) -> None:
        self.name = name
        self.log = log
        self.mark = f"{mark}.{name}"
        self.patience = patience
        self._command = [sys.executable, "-m", *words]
        self._env = {**os.environ, **env, process_reaper.MARK: self.mark, "PYTHONUNBUFFERED": "1"}
        self._port = port

    def start(self) -> Process:
        """Ends what an earlier run of this program left behind, then starts it."""
        process_reaper.kill(self.mark)
        return spawn([*dying_with_owner(signal.SIGKILL), *self._command], self.log, self._env, SOURCE_ROOT)

    def ready(self) -> bool:
        if self._port is None:
            return True
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=5)
        try:
            connection.request("GET", "/readyz")
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()


class ProcessReaper:
    """The process that ends every process carrying `mark` once the supervisor is gone."""

    name = "keeper"
    asks = signal.SIGKILL
    patience = 5.0

    def __init__(self, log: Path, mark: str) -> None:
        self.log = log
        self._mark = mark
        self._reaper_pipe: IO[bytes] | None = None

    def start(self) -> Process:
        if self._reaper_pipe is not None:
            self._reaper_pipe.close()
        process = spawn(
            [sys.executable, "-I", "-S", str(Path(process_reaper.__file__)), self._mark], self.log, stdin=subprocess.PIPE
        )
        self._reaper_pipe = process.stdin
        return process

    def ready(self) -> bool:
        return True
