"""The service's three processes, as an operator would start them, on a port of their own."""

import subprocess
import sys
import time
from pathlib import Path

import httpx

from service.settings import Settings
from tests.service.live_server import PATIENCE


class Service:
    """api, queue and reconcile; each can be killed and started again."""

    def __init__(self, settings: Settings, environment: dict[str, str], folder: Path) -> None:
        self.url, self._environment, self._folder = settings.api_url, environment, folder
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, *names: str) -> None:
        for name in names:
            with (self._folder / f"{name}.log").open("ab") as log:
                command = [sys.executable, "-m", "service", name]
                self._running[name] = subprocess.Popen(command, env=self._environment, stdout=log, stderr=log)
        if "api" in names:
            self._await_api()

    def kill(self, name: str) -> None:
        process = self._running.pop(name)
        process.kill()
        process.wait()

    def stop(self) -> None:
        for process in self._running.values():
            process.terminate()
        for process in self._running.values():
            process.wait(PATIENCE)
        self._running.clear()

    def said(self, name: str) -> str:
        return (self._folder / f"{name}.log").read_text()

    def _await_api(self) -> None:
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                if httpx.get(self.url + "/readyz", timeout=PATIENCE).status_code == 200:
                    return
            except httpx.TransportError:
                assert self._running["api"].poll() is None, self.said("api")
            assert time.monotonic() < deadline, self.said("api")
            time.sleep(0.05)
