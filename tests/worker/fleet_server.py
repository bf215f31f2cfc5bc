"""The fake fleet API's side of HTTP: reads requests that have come whole, and sends what the fleet answers."""

import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler

from tests.http_server import HangUpServer, read_body

Answer = Callable[[str, str, str, bytes], tuple[int, bytes]]  # method, path, Authorization and body to status and body


class FleetServer(HangUpServer):
    """Serves from a thread until it is shut down."""

    daemon_threads = True

    def __init__(self, answer: Answer) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answer = answer
        threading.Thread(target=self.serve_forever, daemon=True).start()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: FleetServer

    def _serve(self) -> None:
        body = read_body(self)
        status, answer = self.server.answer(self.command, self.path, self.headers.get("Authorization", ""), body)
        self.send_response(status)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    do_GET = do_POST = do_PUT = _serve

    def log_message(self, *_: object) -> None:
        return
