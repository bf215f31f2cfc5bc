"""Servers of tests: as many clients as there are may connect before one of them is served."""

import socket
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler

from tests.http_server import HangUpServer

PATIENCE = 120.0


def test_clients_connect_while_the_server_stands_still() -> None:
    with ExitStack() as opened:
        server = opened.enter_context(HangUpServer(("127.0.0.1", 0), BaseHTTPRequestHandler))
        for _ in range(60):
            opened.enter_context(socket.create_connection(server.server_address[:2], timeout=PATIENCE))
