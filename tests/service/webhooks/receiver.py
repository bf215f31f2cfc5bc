"""A receiver of webhooks' messages, which answers as it is told."""

from http.server import BaseHTTPRequestHandler

from tests.http_server import HangUpServer, read_body


class Receiver(HangUpServer):
    """Keeps what it is sent; answers with the next of `answers`, then 200."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), ReceiverHandler)
        self.got: list[tuple[dict[str, str], bytes]] = []
        self.answers: list[int] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/hook"


class ReceiverHandler(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        body = read_body(self)
        self.server.got.append(({name.lower(): value for name, value in self.headers.items()}, body))
        self.send_response(self.server.answers.pop(0) if self.server.answers else 200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass
