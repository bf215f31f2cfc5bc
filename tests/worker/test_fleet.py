"""The fake fleet API: what a client begins to send and does not finish is no request."""

import socket

import pytest

from tests.worker.fleet import JOIN_TOKEN, Fleet

PATIENCE = 120.0
HEAD = f"POST /internal/v1/nodes HTTP/1.1\r\nHost: fleet\r\nAuthorization: Bearer {JOIN_TOKEN}\r\n"


def answer_to(fleet: Fleet, sent: str) -> bytes:
    """All that the fleet sends to a client that sends this and hangs up."""
    received = b""
    with socket.create_connection(("127.0.0.1", int(fleet.url.rpartition(":")[2])), timeout=PATIENCE) as client:
        client.sendall(sent.encode())
        client.shutdown(socket.SHUT_WR)
        while block := client.recv(2**16):
            received += block
    return received


@pytest.mark.parametrize(
    "sent",
    [
        "Content-Length: 2\r\n\r\n",
        "Content-Length: 2\r\n\r\n{",
        "Transfer-Encoding: chunked\r\n\r\n",
        "Transfer-Encoding: chunked\r\n\r\n1",
        "Transfer-Encoding: chunked\r\n\r\n2\r\n{",
        "Transfer-Encoding: chunked\r\n\r\n2\r\n{}",
        "Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n",
        "Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n",
    ],
)
def test_a_body_that_is_cut_short_is_no_request(fleet: Fleet, sent: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert answer_to(fleet, HEAD + sent) == b""
    assert (fleet.requests, fleet.refused, fleet.joins_left) == ([], [], 1000)
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize(
    "sent", ["Content-Length: 2\r\n\r\n{}", "Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n1\r\n}\r\n0\r\nX-After: 1\r\n\r\n"]
)
def test_a_whole_body_is_a_request(fleet: Fleet, sent: str) -> None:
    assert answer_to(fleet, HEAD + sent).startswith(b"HTTP/1.1 422 ")
    assert fleet.requests == [("POST", "/internal/v1/nodes", 422)]
    assert "Field required" in fleet.refused.pop()
