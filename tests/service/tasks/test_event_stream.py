"""Uploads to a real process: in bounded memory, refused early, and leaving nothing when their sender goes away."""

import contextlib
import gzip
import io
import os
import pickle
import random
import socket
import subprocess
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from service.settings import Settings
from tests.service.api import CHAT, chat_rows, jsonl
from tests.service.processes import Api, serving

MIB = 2**20
ROWS = jsonl(*({"prompt": "x" * 500, "completion": "y" * 500} for _ in range(500)))


@pytest.fixture(scope="module")
def settings(settings_for, database_url, free_port, tmp_path_factory) -> Settings:
    folder, one = tmp_path_factory.mktemp("service"), {"api_processes": 1}  # whose memory is looked at
    return settings_for(database_url, folder, port=free_port(), max_file_bytes=40 * MIB, **one)


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


def zipped() -> bytes:
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("train.jsonl", ROWS)
    return held.getvalue()


class Deadly:
    """Pickled, it would end the process that loads it."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os._exit, (1,)


HOSTILE = {
    "broken UTF-8": (lambda: jsonl(CHAT) + b'{"prompt": "\xc3\x28", "completion": "x"}\n', "not_utf8"),
    "UTF-16": (lambda: jsonl(CHAT).decode().encode("utf-16"), "format_not_taken"),
    "a line of 36 MB": (lambda: b'{"prompt": "' + b"x" * (36 * MIB) + b'", "completion": "y"}', "line_too_long"),
    "ten thousand lines of nothing": (lambda: b"\n" * 10_000, "empty_file"),
    "a deep list": (lambda: b'{"prompt": ' + b"[" * 2_000_000 + b"]" * 2_000_000 + b"}", "not_json"),
    "a deep object": (lambda: b'{"a":' * 600_000 + b"1" + b"}" * 600_000, "not_json"),
    "many keys": (lambda: b"{" + b",".join(b'"%d": 1' % n for n in range(200_000)) + b"}", "format_unknown"),
    "one huge number": (lambda: b'{"prompt": "x", "completion": ' + b"9" * 3_000_000 + b"}", "not_json"),
    "a zip": (zipped, "format_not_taken"),
    "a gzip": (lambda: gzip.compress(ROWS), "format_not_taken"),
    "a pickle": (lambda: pickle.dumps([Deadly()]), "not_utf8"),
    "a safetensors header": (lambda: (2**60).to_bytes(8, "little") + b'{"w": {"dtype": "F32", "shape": [1e99]}}', "not_json"),
    "noise": (lambda: random.Random(4).randbytes(2 * MIB), "not_utf8"),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_file_is_refused_in_words_and_leaves_nothing(api, http, settings, what):
    make, code = HOSTILE[what]
    content = make()
    http.get("/v1/quotas")
    before = peak(api.process)
    refused = http.post("/v1/files", files={"file": ("train.jsonl", content)})
    assert (refused.status_code, refused.json()["code"]) == (422, "file_invalid"), refused.text[:500]
    codes = {error["code"] for error in refused.json()["errors"]}
    assert code in codes
    assert len(refused.json()["errors"]) <= 100
    assert len(refused.content) < 64 * 1024
    assert peak(api.process) - before < 64 * MIB
    assert list((settings.storage_dir / "incoming").iterdir()) == []
    assert api.process.poll() is None


def test_an_endless_sender_is_cut_off(http, settings):
    key = http.headers["Authorization"]
    head = (
        f"POST /v1/files HTTP/1.1\r\nHost: x\r\nAuthorization: {key}\r\nTransfer-Encoding: chunked\r\n"
        "Content-Type: multipart/form-data; boundary=b\r\n\r\n"
    )
    start = b'--b\r\nContent-Disposition: form-data; name="file"; filename="x"\r\n\r\n'
    sent = 0
    with socket.create_connection(("127.0.0.1", settings.port)) as connection:
        connection.sendall(head.encode() + b"%x\r\n%s\r\n" % (len(start), start))
        block = b"%x\r\n%s\r\n" % (len(ROWS), ROWS)
        with contextlib.suppress(ConnectionError):
            while sent < 2**31:
                connection.sendall(block)
                sent += len(block)
    assert sent < 64 * MIB  # the limit is 40, and the sockets hold some
    assert list((settings.storage_dir / "incoming").iterdir()) == []


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
