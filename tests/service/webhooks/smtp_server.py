"""A mail server on loopback, as far as a client needs one: STARTTLS, TLS, a login, and answers that go wrong."""

import socketserver
import ssl
from base64 import b64decode

from tests.http_server import QuietHangUps, read_line


class SmtpServer(QuietHangUps, socketserver.ThreadingTCPServer):
    """Answers DATA with the next of `answers`, then 250. `tls`: its certificate, for STARTTLS, or from the first byte where
    `smtps`. `login`: what it asks for before it takes a message. `recipient`: its answer to RCPT."""

    daemon_threads, allow_reuse_address = True, True

    def __init__(
        self,
        tls: ssl.SSLContext | None = None,
        smtps: bool = False,
        login: tuple[str, str] | None = None,
        recipient: str = "250 ok",
    ) -> None:
        super().__init__(("127.0.0.1", 0), _Session)
        self.tls, self.smtps, self.login, self.recipient = tls, smtps, login, recipient
        self.got: list[tuple[list[str], bytes]] = []
        self.answers: list[bytes] = []

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    @property
    def url(self) -> str:
        return f"smtp://127.0.0.1:{self.port}"


class _Session(socketserver.StreamRequestHandler):
    server: SmtpServer

    def handle(self) -> None:
        commands: list[str] = []
        secure = authenticated = False
        if self.server.smtps:
            secure = self._wrap()
            if not secure:
                return
        self._answer("220 here")
        while line := self.rfile.readline().decode().strip():
            commands.append(line)
            verb = line.split(" ")[0].upper()
            if verb == "QUIT":
                return self._answer("221 bye")
            if verb == "EHLO":
                offered = ["STARTTLS"] if self.server.tls and not secure else []
                offered += ["AUTH PLAIN"] if self.server.login and (secure or not self.server.tls) else []
                for one in ["here", *offered]:
                    self._answer(f"250-{one}")
                self._answer("250 HELP")
            elif verb == "STARTTLS":
                self._answer("220 go on")
                if not (secure := self._wrap()):
                    return None
            elif verb == "AUTH":
                _, user, password = b64decode(line.split(" ")[2]).decode().split("\0")
                authenticated = (user, password) == self.server.login
                self._answer("235 welcome" if authenticated else f"535 no such account: {user} {password}")
            elif verb == "RCPT":
                self._answer(self.server.recipient)
            elif verb == "DATA":
                self._answer("354 go on")
                content = b"".join(iter(lambda: read_line(self.rfile), b".\r\n"))
                if self.server.login and not authenticated:
                    self._answer("530 who are you?")
                else:
                    self.server.got.append((commands.copy(), content))
                    self.wfile.write((self.server.answers.pop(0) if self.server.answers else b"250 taken") + b"\r\n")
            else:
                self._answer("250 ok")
        return None

    def _answer(self, text: str) -> None:
        self.wfile.write(text.encode() + b"\r\n")

    def _wrap(self) -> bool:
        """Go on under TLS; whether the client did."""
        assert self.server.tls is not None
        try:
            self.connection = self.server.tls.wrap_socket(self.connection, server_side=True)
        except (ssl.SSLError, ConnectionError):
            return False
        self.rfile, self.wfile = self.connection.makefile("rb"), self.connection.makefile("wb", buffering=0)  # type: ignore[assignment]
        return True
