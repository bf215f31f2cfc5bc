"""Calls to tenants' addresses: what reaches its receiver, what comes back, and that nothing holds a call for long."""

import contextlib
import http.server
import ipaddress
import threading
from collections.abc import Callable, Iterator
from typing import Any

import httpcore
import pytest

from service.http import checked_connections, outbound
from service.http.outbound import Failed, Outbound, Refused
from tests.http_server import HangUpServer, read_body

LOOPBACK = (ipaddress.ip_network("127.0.0.0/8"),)


class Receiver(http.server.BaseHTTPRequestHandler):
    """Keeps what it is sent; answers as `answer` of its server says."""

    def do_POST(self) -> None:
        body = read_body(self)
        self.server.got.append((self.path, dict(self.headers), body))  # type: ignore[attr-defined]
        self.server.answer(self)  # type: ignore[attr-defined]

    do_PUT = do_POST

    def do_GET(self) -> None:
        self.server.answer(self)  # type: ignore[attr-defined]

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def receive() -> Iterator[Callable]:
    """Start a receiver that answers so; its server, whose `got` is what came."""
    servers = []

    def start(answer: Callable[[http.server.BaseHTTPRequestHandler], None]) -> HangUpServer:
        server = HangUpServer(("127.0.0.1", 0), Receiver)
        server.daemon_threads = True
        server.got, server.answer = [], answer  # type: ignore[attr-defined]
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        servers.append(server)
        return server

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def plain(status: int, body: bytes = b"", **headers: str) -> Callable[[http.server.BaseHTTPRequestHandler], None]:
    def answer(to: http.server.BaseHTTPRequestHandler) -> None:
        to.send_response(status)
        for name, value in (headers | {"Content-Length": str(len(body))}).items():
            to.send_header(name, value)
        to.end_headers()
        to.wfile.write(body)

    return answer


def test_an_allowed_network_is_reached_with_the_bytes_as_they_are(receive):
    server = receive(plain(202, b"taken"))
    answer = Outbound(LOOPBACK).post(f"http://localhost:{server.server_port}/hook?a=b%20c", b'{"x": 1}', {"webhook-id": "1"})
    assert (answer.status, answer.body) == (202, b"taken")
    ((path, headers, body),) = server.got
    assert (path, body) == ("/hook?a=b%20c", b'{"x": 1}')
    assert headers["Host"] == f"localhost:{server.server_port}"
    assert headers["webhook-id"] == "1"


def test_a_redirect_is_an_answer_like_any_other(receive):
    inside = receive(plain(200))
    server = receive(plain(302, Location=f"http://127.0.0.1:{inside.server_port}/"))
    assert Outbound(LOOPBACK).post(f"http://127.0.0.1:{server.server_port}/", b"", {}).status == 302
    assert inside.got == []


@pytest.mark.parametrize("location", ["https://h:99999/", "https://[x", "//h:x/"])
def test_a_redirect_to_what_is_no_url_is_refused(receive, location):
    server = receive(plain(302, Location=location))
    with pytest.raises(Refused, match="is not a URL: its host or port"):
        Outbound(LOOPBACK).get(f"http://127.0.0.1:{server.server_port}/", {}, 10)


def test_a_body_goes_in_blocks_of_the_length_that_was_said(receive):
    server = receive(plain(200, b"x" * 2000, ETag='"1"'))
    url, said = f"http://127.0.0.1:{server.server_port}/part?X-Amz-Signature=1", {"Content-Length": "9"}
    got = Outbound(LOOPBACK).send("PUT", url, iter([b"abc", b"def", b"ghi"]), said, most=10)
    assert (got.status, got.headers["etag"], got.body) == (200, '"1"', b"x" * 10)
    ((path, headers, body),) = server.got
    assert (path, body, headers.get("Transfer-Encoding")) == ("/part?X-Amz-Signature=1", b"abcdefghi", None)
    with pytest.raises(Refused, match="not public"):
        Outbound().send("PUT", url, iter([b"abc"]), said, most=10)

    def broken() -> Iterator[bytes]:
        yield b"abc"
        raise OSError("storage is away")

    with pytest.raises(OSError, match="storage is away"):
        Outbound(LOOPBACK).send("PUT", url, broken(), said, most=10)


def test_the_name_is_asked_once(receive, monkeypatch):
    server = receive(plain(200))
    asked: list[str] = []
    monkeypatch.setattr(outbound, "_resolve", _once(outbound._resolve, asked))
    caller = Outbound(LOOPBACK)
    assert caller.post(f"http://localhost:{server.server_port}/", b"", {}).status == 200
    assert asked == ["localhost"]
    assert [headers["Host"] for _, headers, _ in server.got] == [f"localhost:{server.server_port}"]


def _once(resolve: Callable, asked: list[str]) -> Callable:
    def made(host: str, *rest: Any) -> object:
        asked.append(host)
        return resolve(host, *rest)

    return made


def test_a_proxy_of_the_environment_is_not_used(receive, monkeypatch):
    proxy, server = receive(plain(500)), receive(plain(200))
    for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.server_port}")
    assert Outbound(LOOPBACK).post(f"http://127.0.0.1:{server.server_port}/", b"", {}).status == 200
    assert proxy.got == []


def test_an_endless_answer_is_cut_off(receive):
    def endless(to: http.server.BaseHTTPRequestHandler) -> None:
        to.send_response(200)
        to.end_headers()
        with contextlib.suppress(ConnectionError):
            while True:
                to.wfile.write(b"x" * 65536)

    server = receive(endless)
    assert Outbound(LOOPBACK).post(f"http://127.0.0.1:{server.server_port}/", b"", {}).body == b"x" * 1024


def test_an_answer_that_drips_ends_when_the_time_is_up(receive):
    over = threading.Event()

    def drip(to: http.server.BaseHTTPRequestHandler) -> None:
        to.wfile.write(b"HTTP/1.1 200 OK\r\n")
        with contextlib.suppress(ConnectionError):
            while not over.wait(0.05):
                to.wfile.write(b"x-more: y\r\n")

    server = receive(drip)
    with pytest.raises(Failed, match="ReadTimeout"):  # not for the size of the headers
        Outbound(LOOPBACK, seconds=2.0).post(f"http://127.0.0.1:{server.server_port}/", b"", {})
    over.set()


class Reluctant:
    """A socket whose receiver takes a byte a second, by a clock of its own."""

    def __init__(self) -> None:
        self.now, self.taken = 0.0, 0

    def monotonic(self) -> float:
        return self.now

    def settimeout(self, seconds: float) -> None:
        assert seconds > 0

    def send(self, left: memoryview) -> int:
        self.now += 1
        self.taken += 1
        return 1


class Reluctantly(httpcore.NetworkStream):
    def __init__(self, to: Reluctant) -> None:
        self.to = to

    def get_extra_info(self, info: str) -> Reluctant:
        assert info == "socket"
        return self.to

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        """As httpcore's own stream does."""
        for _ in buffer:
            self.to.settimeout(timeout)
            self.to.send(memoryview(buffer))


def test_a_receiver_that_takes_a_large_body_slowly_extends_no_call(monkeypatch):
    to = Reluctant()
    monkeypatch.setattr(checked_connections, "time", to)
    with pytest.raises(httpcore.TimeoutException, match="the whole call took too long"):
        checked_connections._Timed(Reluctantly(to), until=20.5).write(b"x" * 100, timeout=60)
    assert to.taken == 21, "the last one as the time was up"


def test_nobody_there(free_port):
    with pytest.raises(Failed):
        Outbound(LOOPBACK).post(f"http://127.0.0.1:{free_port()}/", b"", {})
