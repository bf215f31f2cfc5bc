"""Watching processes that are not our children, and the events of one that is."""

import json
import os
import select
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from deploy.devstack.programs import SOURCE_ROOT

PATIENCE_SECONDS = 120


def await_end(pid: int) -> None:
    """Until the process has ended."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        assert select.select([handle], [], [], PATIENCE_SECONDS)[0], f"process {pid} still runs: {words_of(pid)}"
    finally:
        os.close(handle)


def words_of(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")


def processes_in(folder: Path) -> dict[int, str]:
    """Every process that names the folder in its command line or works in it."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words, place = words_of(int(entry.name)), os.readlink(entry / "cwd")
            except OSError:
                continue
            if str(folder) in words or place.startswith(str(folder)):
                found[int(entry.name)] = words
    return found


def as_ordinary_user() -> tuple[str, ...]:
    """Words before a command that take root's powers away. A user namespace keeps the files, an interpreter in root's home
    for instance, readable; where there is none, the command becomes user 65534, who may read everything if need be."""
    if os.geteuid() != 0:
        return ()
    namespace = ("unshare", "-U", "--map-user=1000", "--map-group=1000")
    stranger = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
    reader = (*stranger, "--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search", "--securebits=+no_setuid_fixup")
    for prefix in (namespace, stranger, reader):
        tried = [*prefix, sys.executable, "-c", "import tests.deploy.watching"]
        if subprocess.run(tried, capture_output=True, cwd=SOURCE_ROOT, check=False).returncode == 0:
            return prefix
    pytest.skip("root can neither open a user namespace nor let another user read this checkout")


class Events:
    """A process that says what happens as JSON lines."""

    def __init__(self, command: list[str], env: Mapping[str, str] | None = None, prefix: tuple[str, ...] = ()) -> None:
        self.seen: list[dict[str, Any]] = []
        self.process = subprocess.Popen(
            [*prefix, sys.executable, *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **(env or {})},
            cwd=SOURCE_ROOT,
            start_new_session=True,
        )

    def await_event(self, event: str, **wanted: Any) -> dict[str, Any]:
        """The next event of that kind. Fails when the process ends first, or is ready where it should fail."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.seen.append(said := json.loads(line))
            if said["event"] == event and all(said.get(key) == value for key, value in wanted.items()):
                return dict(said)
            if event == "failed" and said["event"] == "ready":
                self.process.terminate()
        raise AssertionError(f"ended with code {self.process.wait()} before {event} {wanted}; it said {self.seen}")
