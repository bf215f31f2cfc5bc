"""`python -m deploy.devstack` whole, workers aside: the servers, the migrations, the first keys, the API and its helpers."""

import contextlib
import json
import os
import shutil
import signal
import socket
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from deploy.devstack import process_reaper
from deploy.devstack.stack import Options, Port, Stack
from deploy.devstack.stack_errors import StackError
from deploy.devstack.state_folder import State
from tests.deploy.watching import PATIENCE_SECONDS, Events, as_ordinary_user, await_end, processes_in
from tests.free_ports import free_port

NAMES = {"postgres", "valkey", "keeper", "api", "queue", "reconcile"}
DEFAULT_PORTS = (5432, 6379, 8321, 8323)


@pytest.fixture(scope="module")
def taken_ports() -> Iterator[set[int]]:
    """The default ports that we listen on. The others belong to somebody who may end at any time, such as another test's
    stack, or one that starts and has only reserved its port."""
    with contextlib.ExitStack() as listeners:
        ours = {}
        for port in DEFAULT_PORTS:
            with contextlib.suppress(StackError, OSError):
                ours[port] = Port("127.0.0.1", port)
                listeners.enter_context(socket.create_server(("127.0.0.1", port)))
        yield set(ours)


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="motet-", dir="/tmp"))
    yield path
    assert not processes_in(path)
    shutil.rmtree(path)


def begin(state: Path, *words: str, **how: Any) -> Events:
    """HOME is a folder that not even root can make."""
    env = {"MOTET_STATE_DIR": str(state), "PGPORT": "5999", "PGHOST": "nowhere", "HOME": "/proc/nowhere"}
    return Events(["-m", "deploy.devstack", *(words or ["--workers", "0"])], env, **how)


@pytest.fixture(scope="module")
def running(folder: Path, taken_ports: set[int]) -> Iterator[tuple[Events, dict[str, Any]]]:
    """A stack started while the default ports are taken, stopped at the end: then nothing of it is left."""
    stack = begin(folder / "state")
    try:
        ready = stack.await_event("ready")
        yield stack, ready
    finally:
        stack.process.send_signal(signal.SIGINT)
        assert stack.process.wait() == 0
    for pid in ready["pids"].values():
        await_end(pid)


def credentials(state: Path) -> dict[str, str]:
    return dict(json.loads((state / "credentials.json").read_text()))


def get(state: Path, path: str, key: str) -> httpx.Response:
    said = credentials(state)
    return httpx.get(
        said["api_url"] + path, headers={"Authorization": f"Bearer {said[key]}"}, trust_env=False, timeout=PATIENCE_SECONDS
    )


def tasks_of_demo(state: Path) -> httpx.Response:
    return get(state, "/v1/tasks", "demo_key")


def await_node(state: Path) -> None:
    """Until a worker has joined."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not get(state, "/v1/admin/nodes", "admin_key").json()["data"]:
        assert time.monotonic() < deadline, (state / "logs" / "worker.log").read_text()
        time.sleep(0.2)


def test_it_says_where_it_is_and_answers_there(
    running: tuple[Events, dict[str, Any]], folder: Path, taken_ports: set[int]
) -> None:
    _, ready = running
    assert ready["attached"] is False
    assert ready["state_dir"] == str(folder / "state")
    assert set(ready["pids"]) == NAMES
    assert httpx.get(ready["api_url"] + "/readyz", trust_env=False, timeout=PATIENCE_SECONDS).status_code == 200
    port, transfers = ready["options"]["port"], ready["options"]["transfer_port"]
    assert not {port, transfers} & {0, *taken_ports}
    assert ready["api_url"] == f"http://127.0.0.1:{port}"
    assert ready.get("instead_of_port") == (8321 if port != 8321 else None)
    assert httpx.get(f"http://127.0.0.1:{transfers}/livez", trust_env=False, timeout=PATIENCE_SECONDS).status_code == 200
    assert tasks_of_demo(folder / "state").json()["data"] == []


def test_nobody_else_may_read_its_state(running: tuple[Events, dict[str, Any]], folder: Path) -> None:
    assert stat.S_IMODE((folder / "state").stat().st_mode) in {0o700, 0o711}
    loose = [path for path in (folder / "state").iterdir() if path.stat().st_mode & 0o077]
    assert not loose
    secrets = json.loads((folder / "state" / "secrets.json").read_text())
    secrets.pop("mark")  # a name, not a secret
    for process in running[1]["pids"].values():
        words = Path(f"/proc/{process}/cmdline").read_text()
        assert not [name for name, secret in secrets.items() if secret in words]


def test_a_second_start_attaches_and_leaves_the_first_running(running: tuple[Events, dict[str, Any]], folder: Path) -> None:
    _, first = running
    second = begin(folder / "state")
    ready = second.await_event("ready")
    assert ready["attached"] is True
    assert {key: ready[key] for key in ("api_url", "pids", "state_dir")} == {
        key: first[key] for key in ("api_url", "pids", "state_dir")
    }
    second.process.send_signal(signal.SIGINT)
    second.await_event("stopped")
    assert second.process.wait() == 0
    port = first["api_url"].rpartition(":")[2]
    for words, without in (
        (["--port", "1"], "--port 1"),
        (["--port", port, "--workers", "3"], "without --workers 3"),
        (["--transfer-port", "0"], "without --transfer-port 0"),
    ):
        failed = begin(folder / "state", *words).await_event("failed")
        assert without in failed["message"], "an option is not ignored without a word"
        assert "leave these out to attach" in failed["fix"]
    third = begin(folder / "state", "--port", port)
    third.await_event("ready", attached=True)
    third.process.send_signal(signal.SIGINT)
    assert third.process.wait() == 0
    assert tasks_of_demo(folder / "state").status_code == 200


def test_a_port_that_was_asked_for_and_is_taken_is_an_error(folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        stack = begin(folder / "other", "--workers", "0", "--port", str(port))
        failed = stack.await_event("failed")
    assert f"port {port} of 127.0.0.1 is taken" in failed["message"]
    assert "leave the port out" in failed["fix"]
    assert stack.process.wait() == 1


@pytest.mark.parametrize(
    ("variables", "named", "there"),
    [
        ({}, None, True),
        ({}, 0, False),
        ({"MOTET_STORAGE_URL": "file:///objects"}, None, True),
        ({"MOTET_STORAGE_URL": "s3://bucket"}, None, False),
    ],
)
def test_a_folder_has_a_transfer_port_unless_none_is_wanted(
    variables: dict[str, str], named: int | None, there: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MOTET_STORAGE_URL", raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    stack = Stack(State(tmp_path / "state"), Options(transfer_port=named))
    assert (stack.transfer_port is not None) == there
    assert stack.transfer_port != stack.port


def test_two_stacks_that_start_together_choose_two_ports() -> None:
    default = free_port()
    first, second = Port("127.0.0.1", None, default), Port("127.0.0.1", None, default)
    assert (first.number, first.instead_of) == (default, None)
    assert second.number != default
    assert (second.instead_of, Port("127.0.0.1", None, default).instead_of) == (default, default)
    with pytest.raises(StackError, match=f"port {default} of 127.0.0.1 is taken"):
        Port("127.0.0.1", default)
    del first
    assert Port("127.0.0.1", default).number == default


def test_a_folder_that_cannot_be_written_is_an_error(folder: Path) -> None:
    closed = folder / "closed"
    closed.mkdir(mode=0o555)
    stack = begin(closed / "state", prefix=as_ordinary_user())
    failed = stack.await_event("failed")
    assert str(closed / "state") in failed["message"]
    assert "MOTET_STATE_DIR" in failed["fix"]
    assert stack.process.wait() == 1


def test_damaged_secrets_are_an_error(folder: Path) -> None:
    damaged = folder / "damaged"
    damaged.mkdir()
    (damaged / "secrets.json").write_text('{"postgres": "x"}')
    failed = begin(damaged).await_event("failed")
    assert "secrets.json is damaged" in failed["message"]
    assert "restore" in failed["fix"]


def test_a_killed_stack_of_an_ordinary_user_leaves_nothing_and_starts_again(folder: Path) -> None:
    """A worker and its heartbeat are among what ends. The second time it stops once its standard input closes, and who
    attached to it stops too."""
    folder.chmod(0o777)
    state = folder / "mine"
    first = begin(state, "--device", "cpu", prefix=as_ordinary_user())
    ready = first.await_event("ready")
    assert set(ready["pids"]) == NAMES | {"worker"}
    await_node(state)
    before = credentials(state)
    marked = process_reaper.find(json.loads((state / "secrets.json").read_text())["mark"])
    assert len(marked) > len({"api", "queue", "reconcile", "worker"}), "a heartbeat should carry the mark too"
    first.process.kill()
    for pid in [*ready["pids"].values(), *marked]:
        await_end(pid)

    again = begin(state, "--stop-on-eof", "--workers", "0", prefix=as_ordinary_user())
    again.await_event("ready", attached=False)
    assert credentials(state)["demo_key"] == before["demo_key"]
    assert tasks_of_demo(state).status_code == 200
    guest = begin(state, prefix=as_ordinary_user())
    guest.await_event("ready", attached=True)
    assert again.process.stdin is not None
    again.process.stdin.close()
    again.await_event("stopped")
    guest.await_event("stopped")
    assert (again.process.wait(), guest.process.wait()) == (0, 0)
    assert not (state / "stack.json").exists()
    assert os.listdir(state / "postgres" / "run") == []
