"""A large upload and download beside polls: `python -m benchmarks.storage --gb 10 --kind folder localbucket`, each by itself.

The API, Postgres, Valkey and the server that speaks S3 are real processes on this machine, which all share its cores. A file of
`--gb` gigabytes, made as it is sent, is uploaded through the API, which checks its rows and sends it on in parts, then
downloaded by the redirect: to a presigned URL of a bucket, or to the transfer port of a folder. Meanwhile somebody polls a task
every 20 ms.

The gate: what comes back has the sha256 of what was sent, every poll was answered, the download did not come from the API's own
port, and the memory of the API's processes, that of the transfer port included, grew by less than FLAT_MB, whatever the size.
A bucket's server keeps up to three copies for a moment, so a run needs DISK_COPIES times the size.
"""

import argparse
import hashlib
import json
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

import httpx

from benchmarks.process_usage import Spent, family, memory_mb, stolen_seconds
from benchmarks.result_file import write_result
from tests.free_ports import free_port
from tests.service.storage.object_servers import CREDENTIALS, object_server
from tests.walk.running_stack import RunningStack, gsm8k, running_stack

FLAT_MB = 200.0
DISK_COPIES = {"folder": 1.1, "localbucket": 3.2, "moto": 0.1}  # moto keeps its objects in memory
_BOUNDARY = "a-boundary-of-the-benchmark"
_ROW_BYTES = 64 * 1024
_POLL_SECONDS, _IDLE_SECONDS = 0.02, 15.0
_SECONDS = 3600.0  # of one transfer


class Polls:
    """Polls a task and looks at the API's memory, in a thread, while the body runs."""

    def __init__(self, motet: RunningStack, task_id: str) -> None:
        self._motet, self._path, self._stop = motet, f"/v1/tasks/{task_id}", threading.Event()
        self._thread = threading.Thread(target=self._poll)
        self._failed: Exception | None = None
        self.times: list[float] = []
        self.memory: list[float] = []

    def __enter__(self) -> "Polls":
        self._spent, self._stolen, self._began = Spent({"api": self._motet.pids["api"]}), stolen_seconds(), time.monotonic()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self.seconds = time.monotonic() - self._began
        self.cpu, self.stolen = self._spent.seconds()["api"], stolen_seconds() - self._stolen
        if self._failed is not None:
            raise self._failed

    def row(self, what: str) -> dict[str, Any]:
        ordered = sorted(self.times)
        return {
            "what": what,
            "seconds": self.seconds,
            "polls": len(ordered),
            "poll_p50_ms": 1000 * median(ordered),
            "poll_p99_ms": 1000 * ordered[int(0.99 * (len(ordered) - 1))],
            "api_cpu_s": self.cpu,
            "api_memory_mb": max(self.memory),
            "stolen_s": self.stolen,
        }

    def _poll(self) -> None:
        headers, processes = {"Authorization": f"Bearer {self._motet.demo}"}, family(self._motet.pids["api"])
        with httpx.Client(base_url=self._motet.url, headers=headers, timeout=60) as http:
            try:
                while not self._stop.wait(_POLL_SECONDS):
                    began = time.perf_counter()
                    http.get(self._path).raise_for_status()
                    self.times.append(time.perf_counter() - began)
                    self.memory.append(memory_mb(processes))
            except httpx.HTTPError as error:
                self._failed = error


def body(size: int, digest: Any) -> Iterator[bytes]:
    """The multipart body of a file of about `size` bytes, whose hash goes into `digest`."""
    yield f'--{_BOUNDARY}\r\nContent-Disposition: form-data; name="file"; filename="large.jsonl"\r\n\r\n'.encode()
    for number in range(size // _ROW_BYTES):
        row = {"prompt": f"row {number}", "completion": os.urandom(_ROW_BYTES // 2 - 32).hex()}
        line = json.dumps(row).encode() + b"\n"
        digest.update(line)
        yield line
    yield f"\r\n--{_BOUNDARY}--\r\n".encode()


def upload(motet: RunningStack, size: int) -> tuple[dict[str, Any], str]:
    digest = hashlib.sha256()
    headers = {"Content-Type": f"multipart/form-data; boundary={_BOUNDARY}"}
    answer = motet.http.post("/v1/files", content=body(size, digest), headers=headers, timeout=_SECONDS)
    assert answer.status_code == 201, answer.text
    return answer.json(), digest.hexdigest()


def download(motet: RunningStack, file_id: str) -> str:
    digest = hashlib.sha256()
    with motet.http.stream("GET", f"/v1/files/{file_id}/content", follow_redirects=True, timeout=_SECONDS) as answer:
        assert answer.status_code == 200
        assert answer.url.port != httpx.URL(motet.url).port, "the API sent the file itself"
        for block in answer.iter_bytes(2**20):
            digest.update(block)
    return digest.hexdigest()


def measure(motet: RunningStack, size: int) -> tuple[list[dict[str, Any]], dict[str, float], dict[str, Any]]:
    task_id = motet.submit(
        dataset={"file_id": motet.upload(gsm8k(20))},
        search_space={"learning_rate": [1e-3], "rank": [4]},
        training={"max_steps": 1},
    )
    motet.until(task_id, lambda task: task["status"] == "succeeded")
    with Polls(motet, task_id) as idle:
        time.sleep(_IDLE_SECONDS)
    with Polls(motet, task_id) as uploading:
        file, sent = upload(motet, size)
    with Polls(motet, task_id) as downloading:
        came = download(motet, file["id"])
    rows = [idle.row("idle"), uploading.row("upload"), downloading.row("download")]
    grown = max(row["api_memory_mb"] for row in rows[1:]) - rows[0]["api_memory_mb"]
    figures = {
        "upload_mb_s": file["bytes"] / 1e6 / uploading.seconds,
        "download_mb_s": file["bytes"] / 1e6 / downloading.seconds,
        "upload_gb": file["bytes"] / 1e9,
        "api_memory_grown_mb": grown,
        "poll_p99_ms_idle": rows[0]["poll_p99_ms"],
        "poll_p99_ms_upload": rows[1]["poll_p99_ms"],
        "poll_p99_ms_download": rows[2]["poll_p99_ms"],
    }
    same = sent == file["sha256"] == came
    gate = {"passed": same and grown < FLAT_MB, "same_sha256": same, "api_memory_grown_mb": grown, "bound_mb": FLAT_MB}
    return rows, figures, gate


def transfer_port() -> dict[str, str]:
    """Variables of a folder's transfer port that tenants are sent to."""
    port = free_port()
    return {"MOTET_TRANSFER_PORT": str(port), "MOTET_TRANSFER_URL": f"http://127.0.0.1:{port}"}


def over(kind: str, size: int) -> tuple[list[dict[str, Any]], dict[str, float], dict[str, Any]]:
    """`measure` with the objects in a folder or a bucket of this kind. What it writes is gone afterwards."""
    environment = {"MOTET_MAX_FILE_BYTES": str(2 * size), "MOTET_MAX_FILE_ROWS": str(10**9)}
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        free, needed = shutil.disk_usage(folder).free, DISK_COPIES[kind] * size
        if free < needed:
            raise SystemExit(
                f"{folder} has {free / 1e9:.1f} GB free, this takes {needed / 1e9:.1f}: --gb takes less, TMPDIR another disk"
            )
        if kind != "folder":
            server = stack.enter_context(object_server(kind, Path(folder)))
            where = server.settings(storage_timeout_seconds=120)
            environment |= CREDENTIALS | {f"MOTET_{name.upper()}": str(value) for name, value in where.items() if value}
        else:
            environment |= transfer_port()
        motet = stack.enter_context(running_stack(Path(folder) / "state", **environment))
        return measure(motet, size)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--gb", type=float, default=1.0)
    parser.add_argument("--kind", nargs="+", choices=list(DISK_COPIES), default=["folder", "localbucket"])
    given = parser.parse_args()
    rows, figures, gate = [], {}, {"passed": True}
    for kind in given.kind:
        measured, of_kind, passed = over(kind, int(given.gb * 1e9))
        print(of_kind, passed)
        rows += [{"kind": kind} | row for row in measured]
        figures |= {f"{kind}_{name}": value for name, value in of_kind.items()}
        gate |= {"passed": gate["passed"] and passed["passed"], kind: passed}
    for row in rows:
        print(row)
    print(write_result("storage", gate, figures, rows))


if __name__ == "__main__":
    main()
