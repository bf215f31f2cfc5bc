"""Sends e-mail through the operator's SMTP server. Each try is a connection of its own, shorter than a courier's visibility
timeout. What fails is told without the account: tenants read it."""

import smtplib
import socket
import ssl
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from email.message import EmailMessage
from typing import Self
from urllib.parse import unquote, urlsplit

from service.http.outbound import Failed
from service.setting_types import SMTP_PORTS

_SECONDS = 5.0  # of each answer,
_ALL_SECONDS = 30.0  # and of a try: a server may send one letter every other second
SENT = 250


@dataclass(frozen=True)
class Mailer:
    """An SMTP server and the address that messages come from."""

    scheme: str
    host: str
    port: int
    user: str | None = field(repr=False)
    password: str | None = field(repr=False)
    sender: str
    seconds: float = _SECONDS
    all_seconds: float = _ALL_SECONDS

    @classmethod
    def of(cls, url: str, sender: str | None) -> Self:
        """From a SmtpUrl."""
        parts = urlsplit(url)
        assert parts.hostname is not None  # as SmtpUrl has checked
        user, password = (unquote(part) if part is not None else None for part in (parts.username, parts.password))
        port = parts.port or SMTP_PORTS[parts.scheme]
        return cls(parts.scheme, parts.hostname, port, user, password, sender or f"motet@{parts.hostname}")

    def send(self, message: EmailMessage) -> int:
        """SMTP's 250. Raises Failed where the server does not take it."""
        try:
            with _Deadline(self.all_seconds) as deadline, self._connected(deadline) as server:
                if self.scheme == "smtp+starttls":
                    server.starttls(context=ssl.create_default_context())
                if self.user is not None:
                    server.login(self.user, self.password or "")
                server.send_message(message)
        except smtplib.SMTPAuthenticationError as refused:  # its text may name the account
            raise self._failed(f"it refused the login ({refused.smtp_code})") from None
        except (smtplib.SMTPException, OSError) as error:
            raise self._failed(f"{type(error).__name__}: {error}") from None
        except ValueError:  # not encodable; its text would tell of the account
            raise self._failed("the account or an address has characters that cannot be sent over SMTP") from None
        return SENT

    def _failed(self, why: str) -> Failed:
        return Failed(f"the SMTP server {self.host} did not take it: {why}"[:500])

    def _connected(self, deadline: "_Deadline") -> smtplib.SMTP:
        tls = ssl.create_default_context() if self.scheme == "smtps" else None
        return _Connection(self.host, self.port, self.seconds, tls, deadline)


class _Deadline:
    """Ends the connection that it watches after a time, which fails whatever waits for it."""

    def __init__(self, seconds: float) -> None:
        self._timer = threading.Timer(seconds, self._end)
        self._timer.daemon = True
        self._watched: socket.socket | None = None
        self._over = False

    def watch(self, connection: socket.socket) -> None:
        self._watched = connection.dup()  # TLS takes the other one over
        if self._over:
            self._end()

    def _end(self) -> None:
        self._over = True
        if (watched := self._watched) is not None:
            with suppress(OSError):  # the server has ended it
                watched.shutdown(socket.SHUT_RDWR)

    def __enter__(self) -> Self:
        self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()
        if self._watched is not None:
            self._watched.close()


class _Connection(smtplib.SMTP):
    """Connects as SMTP does, or as SMTP_SSL where there is `tls`, under the deadline from the first byte on."""

    def __init__(self, host: str, port: int, seconds: float, tls: ssl.SSLContext | None, deadline: _Deadline) -> None:
        self._tls, self._deadline = tls, deadline
        super().__init__(host, port, timeout=seconds)

    def __exit__(self, *_: object) -> None:
        """What a server says to QUIT changes nothing: the message was taken, or was refused for another reason."""
        with suppress(smtplib.SMTPException, OSError):
            self.docmd("QUIT")
        self.close()

    def _get_socket(self, host: str, port: int, timeout: float) -> socket.socket:
        made = socket.create_connection((host, port), timeout)
        self._deadline.watch(made)
        return made if self._tls is None else self._tls.wrap_socket(made, server_hostname=host)
