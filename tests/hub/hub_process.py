"""Starts the hub's process, fills it, and orders its faults."""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
TOKEN = "hf_test_token"
COMMIT = "c0ffee" + "0" * 34
MODEL = ROOT / "examples" / "base-model"


class HubProcess:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.faults()
        command = [sys.executable, "-m", "tests.hub", str(folder)]
        self._process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.url = f"http://127.0.0.1:{int(self._process.stdout.readline())}"

    def faults(self, **faults: Any) -> None:
        """From the next request on; none given: it works."""
        new = self.folder / "faults.new"
        new.write_text(json.dumps(faults))
        new.rename(self.folder / "faults.json")

    def add(self, name: str, files: dict[str, bytes] | None = None, commit: str = COMMIT, **said: Any) -> Path:
        """A repository; left out, its files are those of the example's base."""
        folder = self.folder / name
        if files is None:
            shutil.copytree(MODEL, folder)
        else:
            folder.mkdir(parents=True)
            for path, content in files.items():
                (folder / path).parent.mkdir(parents=True, exist_ok=True)
                (folder / path).write_bytes(content)
        held = {"commits": {"main": commit}, "license": "apache-2.0", **said}
        (folder / "hub.json").write_text(json.dumps(held))
        return folder

    def held(self, name: str) -> dict[str, Any]:
        """What the hub holds of a repository that was made there: branches, trees, log."""
        found: dict[str, Any] = json.loads((self.folder / name / "hub.json").read_text())
        return found

    @property
    def other_origin(self) -> str:
        """The same server under another name."""
        return self.url.replace("127.0.0.1", "localhost")

    @property
    def requests(self) -> list[list[str]]:
        """Path, range, token and method of each request."""
        log = self.folder / "requests.log"
        return [line.split(" ") for line in log.read_text().splitlines()] if log.exists() else []

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


@contextmanager
def hub_process(folder: Path) -> Iterator[HubProcess]:
    hub = HubProcess(folder)
    try:
        yield hub
    finally:
        hub.close()
