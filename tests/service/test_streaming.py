"""Uploads to a real process: in bounded memory, refused early, and leaving nothing when their sender goes away."""

import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from service.settings import Settings
from tests.service.api import chat_rows, jsonl
from tests.service.processes import Api, serving

MIB = 2**20
ROWS = jsonl(*({"prompt": "x" * 500, "completion": "y" * 500} for _ in range(500)))


@pytest.fixture(scope="module")
def settings(settings_for, database_url, free_port, tmp_path_factory) -> Settings:
    return settings_for(database_url, tmp_path_factory.mktemp("service"), port=free_port(), max_file_bytes=40 * MIB)


@pytest.fixture(scope="module")
def api(settings, environment_of, tmp_path_factory) -> Iterator[Api]:
    with serving(settings, environment_of(settings), tmp_path_factory.mktemp("log") / "api.log") as started:
        yield started


@pytest.fixture
def http(api, new_key) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=api.url, headers={"Authorization": f"Bearer {new_key()}"}, timeout=120) as made:
        yield made


def peak(process: subprocess.Popen[bytes]) -> int:
    """Most bytes of memory the process has ever used."""
    said = Path(f"/proc/{process.pid}/status").read_text()
    return 1024 * next(int(line.split()[1]) for line in said.splitlines() if line.startswith("VmHWM"))


def test_an_upload_takes_memory_for_its_blocks_and_not_for_itself(api, http, tmp_path):
    path = tmp_path / "large.jsonl"
    path.write_bytes(ROWS * (36 * MIB // len(ROWS)))
    assert http.post("/v1/files", files={"file": jsonl(*chat_rows(9))}).status_code == 201
    before = peak(api.process)
    with path.open("rb") as file:
        made = http.post("/v1/files", files={"file": file})
    assert made.status_code == 201, made.text
    assert made.json()["bytes"] == path.stat().st_size
    with http.stream("GET", f"/v1/files/{made.json()['id']}/content") as content:
        assert sum(map(len, content.iter_bytes())) == path.stat().st_size
    assert peak(api.process) - before < 16 * MIB


@pytest.mark.parametrize("how", ["declared", "chunked"])
def test_a_sender_of_too_much_gets_to_read_why(http, how):
    body = (
        b'--b\r\nContent-Disposition: form-data; name="file"; filename="x"\r\n\r\n',
        *(ROWS for _ in range(41 * MIB // len(ROWS) + 1)),
        b"\r\n--b--\r\n",
    )
    headers = {"content-type": "multipart/form-data; boundary=b"}
    if how == "declared":
        headers["content-length"] = str(sum(map(len, body)))
    refused = http.post("/v1/files", content=iter(body), headers=headers)
    assert (refused.status_code, refused.json()["code"]) == (413, "file_too_large")


def test_a_sender_that_goes_away_leaves_nothing(api, http, settings):
    incoming = settings.storage_dir / "incoming"
    key = http.headers["Authorization"]
    head = (
        f"POST /v1/files HTTP/1.1\r\nHost: x\r\nAuthorization: {key}\r\nContent-Length: 10000000\r\n"
        "Content-Type: multipart/form-data; boundary=b\r\n\r\n"
        '--b\r\nContent-Disposition: form-data; name="file"; filename="x"\r\n\r\n'
    )
    with socket.create_connection(("127.0.0.1", settings.port)) as connection:
        connection.sendall(head.encode() + ROWS)
        until(lambda: list(incoming.iterdir()) != [])
    until(lambda: list(incoming.iterdir()) == [])


def until(condition) -> None:
    """Wait for something another process does and tells nobody."""
    pause = threading.Event()
    for _ in range(3000):
        if condition():
            return
        pause.wait(0.02)
    raise AssertionError("it did not come to pass")
