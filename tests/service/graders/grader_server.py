"""A tenant's grader: a real HTTP server, whose answers a test says."""

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any

from tests.http_server import HangUpServer, read_body


@dataclass(frozen=True)
class Answer:
    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)


def scored(score: Any) -> Answer:
    return Answer(200, json.dumps({"score": score}).encode())


def by_length(asked: dict[str, Any]) -> Answer:
    """A tenth for each letter of the text."""
    return scored(len(asked["sample"]["output_text"]) / 10)


class GraderServer(HangUpServer):
    """Keeps what it is asked, and answers what `answers` says, which may take its time."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.lock = threading.Lock()
        self.asked: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.answers: Callable[[dict[str, Any]], Answer] = by_length
        self.at_once = self.most_at_once = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/grade"

    @property
    def texts(self) -> list[str]:
        """The texts that it was asked about, in order."""
        return [one["sample"]["output_text"] for one in self.asked]


class _Handler(BaseHTTPRequestHandler):
    server: GraderServer

    def do_POST(self) -> None:
        asked = json.loads(read_body(self))
        with self.server.lock:
            self.server.asked.append(asked)
            self.server.headers.append({name.lower(): value for name, value in self.headers.items()})
            self.server.at_once += 1
            self.server.most_at_once = max(self.server.most_at_once, self.server.at_once)
        answer = self.server.answers(asked)
        with self.server.lock:
            self.server.at_once -= 1
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
