"""A real socket that answers from a script: restarts, half answers, a proxy's pages; and resources as the API sends them."""

import json
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from typing import Any

from tests.http_server import HangUpServer, read_body

Answer = tuple[int, dict[str, str], bytes]


class Script:
    """What the server answers, one after the other; the last answer stays."""

    def __init__(self, *answers: Answer | None) -> None:
        self.answers = list(answers)
        self.asked: list[str] = []
        self.keys: list[str | None] = []  # the requests' Idempotency-Keys
        self.headers: list[dict[str, str]] = []
        self.bodies: list[bytes] = []

    def next(self, request: str) -> Answer | None:
        self.asked.append(request)
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


@contextmanager
def serving(script: Script) -> Iterator[str]:
    """The address of a server that follows the script."""

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            script.bodies.append(read_body(self))
            script.keys.append(self.headers.get("idempotency-key"))
            script.headers.append({name.lower(): value for name, value in self.headers.items()})
            given = script.next(f"{self.command} {self.path}")
            if given is None:
                self.connection.close()  # an API that is killed in the middle of a request
                return
            status, headers, body = given
            self.send_response(status)
            for name, value in ({"content-length": str(len(body))} | headers).items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = do_PATCH = do_DELETE = answer

        def log_message(self, format: str, *args: Any) -> None:
            return

    server: socketserver.BaseServer = HangUpServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"  # type: ignore[index]
    finally:
        server.shutdown()
        server.server_close()


def body(**members: Any) -> bytes:
    return json.dumps(members).encode()


MOMENT = "2026-01-01T00:00:00Z"
PAGE: Answer = (200, {}, body(object="list", data=[], next_cursor=None))
FILE = {"id": "file_1", "name": "a", "format": "chat", "bytes": 1, "rows": 1, "sha256": "0" * 64, "created_at": MOMENT}
TASK = {
    "id": "task_1",
    "status": "running",
    "base_model": "b",
    "base_revision": "r",
    "spec": {},
    "version": 1,
    "created_at": MOMENT,
}
CONFIG = {"learning_rate": 1e-3, "rank": 8, "alpha": 16, "batch_size": 4, "seed": 0}
LINEAGE = {
    "task_id": "t",
    "job_id": "j",
    "base_model": "b",
    "base_revision": "r",
    "dataset_sha256": "0" * 64,
    "config": CONFIG,
}
ADAPTER = {
    "id": "adapter_1",
    "task_id": "t",
    "job_id": "j",
    "step": 1,
    "val_loss": 1.0,
    "bytes": 2,
    "lineage": LINEAGE,
    "files": [{"path": name, "sha256": "0" * 64, "bytes": 1} for name in ("adapter_config.json", "adapter_model.safetensors")],
    "created_at": MOMENT,
}
