"""What servers that stand for trackers have in common: calls one by one, and what goes wrong with them."""

import json
import threading
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any, Protocol
from urllib.parse import urlsplit

from tests.http_server import HangUpServer, read_body

LOST = "lost"  # of `fault`: the call is carried out, and its answer gets lost


@dataclass(frozen=True)
class Answer:
    status: int = 200
    body: bytes = b"{}"
    headers: dict[str, str] = field(default_factory=dict)


class TrackedRun(Protocol):
    """A job's run as tests of both trackers see it; status: in MLflow's words."""

    status: str
    params: dict[str, Any]

    def curve(self, key: str) -> list[tuple[int, float]]:
        """In the order in which the points came."""


class ScriptedTracker(HangUpServer):
    """`fault` is asked before each call: an Answer to give instead, LOST, or None. listens: else connections are refused until
    `server_activate`."""

    daemon_threads = True

    def __init__(self, listens: bool = True) -> None:
        super().__init__(("127.0.0.1", 0), _Handler, bind_and_activate=False)
        self.server_bind()
        if listens:
            self.server_activate()
        self.lock = threading.RLock()
        self.calls: list[str] = []
        self.headers: list[dict[str, str]] = []
        self.fault: Callable[[str, dict[str, Any]], Answer | str | None] = lambda call, asked: None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    @abstractmethod
    def read(self, path: str, query: str, body: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        """The call's name, and what it asks for."""

    @abstractmethod
    def carry_out(self, call: str, asked: dict[str, Any], headers: dict[str, str]) -> Answer: ...

    @abstractmethod
    def run_of(self, job_id: str) -> TrackedRun: ...


class _Handler(BaseHTTPRequestHandler):
    server: ScriptedTracker

    def do_GET(self) -> None:
        self._serve({})

    def do_POST(self) -> None:
        self._serve(json.loads(read_body(self)))

    def _serve(self, body: dict[str, Any]) -> None:
        parts = urlsplit(self.path)
        call, asked = self.server.read(parts.path, parts.query, body)
        headers = {name.lower(): value for name, value in self.headers.items()}
        with self.server.lock:
            self.server.calls.append(call)
            self.server.headers.append(headers)
        fault = self.server.fault(call, asked)
        answer = fault if isinstance(fault, Answer) else self.server.carry_out(call, asked, headers)
        if fault == LOST:
            return
        try:
            self.send_response(answer.status)
            for name, value in answer.headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(answer.body)
        except (BrokenPipeError, ConnectionResetError):
            pass  # the caller did not wait

    def log_message(self, *_: object) -> None:
        pass
