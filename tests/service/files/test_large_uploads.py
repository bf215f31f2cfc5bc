"""Uploads at their full size, in the long form: two gigabytes of rows, and a line of fifty megabytes, both in flat memory."""

from collections.abc import Iterator

import httpx
import pytest

from service.settings import Settings
from tests.service.api import CHAT, jsonl
from tests.service.processes import Api, serving
from tests.service.tasks.test_event_stream import MIB, peak

ROW = jsonl({"prompt": "x" * 8000, "completion": "y" * 8000})
BLOCK = ROW * 64


@pytest.fixture
def settings(settings_for, database_url, free_port, tmp_path) -> Settings:
    return settings_for(database_url, tmp_path, port=free_port(), max_file_bytes=3 * 2**30)


@pytest.fixture
def api(settings, environment_of, tmp_path) -> Iterator[Api]:
    with serving(settings, environment_of(settings), tmp_path / "api.log") as started:
        yield started


@pytest.fixture
def http(api, new_key) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=api.url, headers={"Authorization": f"Bearer {new_key()}"}, timeout=600) as made:
        yield made


def upload(http: httpx.Client, blocks: Iterator[bytes]) -> httpx.Response:
    def body() -> Iterator[bytes]:
        yield b'--b\r\nContent-Disposition: form-data; name="file"; filename="x"\r\n\r\n'
        yield from blocks
        yield b"\r\n--b--\r\n"

    return http.post("/v1/files", content=body(), headers={"content-type": "multipart/form-data; boundary=b"})


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_two_gigabytes(api, http):
    assert http.get("/v1/quotas").status_code == 200
    before, blocks = peak(api.process), 2 * 2**30 // len(BLOCK) + 1
    made = upload(http, (BLOCK for _ in range(blocks)))
    assert made.status_code == 201, made.text[:500]
    assert (made.json()["bytes"], made.json()["rows"]) == (blocks * len(BLOCK), blocks * 64)
    assert peak(api.process) - before < 32 * MIB
    assert http.delete(f"/v1/files/{made.json()['id']}").status_code == 204


@pytest.mark.slow
def test_a_line_of_fifty_megabytes(api, http):
    assert http.get("/v1/quotas").status_code == 200
    before, letters = peak(api.process), b"x" * MIB
    refused = upload(http, iter([jsonl(CHAT), b'{"prompt": "', *(letters for _ in range(50)), b'", "completion": "y"}\n']))
    assert refused.status_code == 422
    assert [(error["line"], error["code"]) for error in refused.json()["errors"]] == [(2, "line_too_long")]
    assert peak(api.process) - before < 32 * MIB
