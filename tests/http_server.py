"""HTTP servers whose clients may be killed, or close their connections, at any moment."""

import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BufferedIOBase
from typing import Any


class QuietHangUps:
    """Of a socketserver.TCPServer: it prints no traceback where a client hangs up."""

    request_queue_size = 128  # with Python's 5, a connect takes seconds where more come while the machine stands still

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)  # type: ignore[misc]


class HangUpServer(QuietHangUps, ThreadingHTTPServer):
    pass


def read_body(request: BaseHTTPRequestHandler) -> bytes:
    """The request's body. ConnectionAbortedError where the client hung up before its end: it has made no request."""
    if request.headers.get("Transfer-Encoding") != "chunked":
        return _read_exactly(request.rfile, int(request.headers.get("Content-Length") or 0))
    body = b""
    while length := int(read_line(request.rfile), 16):
        body += _read_exactly(request.rfile, length)
        read_line(request.rfile)
    while read_line(request.rfile) != b"\r\n":
        pass  # trailers
    return body


def read_line(incoming: BufferedIOBase) -> bytes:
    """With its end; ConnectionAbortedError where that never came."""
    line = incoming.readline()
    if not line.endswith(b"\n"):
        raise ConnectionAbortedError(f"the client hung up after {line!r}")
    return line


def _read_exactly(incoming: BufferedIOBase, size: int) -> bytes:
    content = incoming.read(size)
    if len(content) < size:
        raise ConnectionAbortedError(f"the client hung up after {len(content)} of {size} bytes")
    return content
