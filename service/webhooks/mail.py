"""Sends e-mail through the operator's SMTP server. Each try is a connection of its own, shorter than a courier's visibility
timeout."""

import smtplib
import ssl
from dataclasses import dataclass
from email.message import EmailMessage
from typing import Self
from urllib.parse import unquote, urlsplit

from service.http.outbound import Failed
from service.setting_types import SMTP_PORTS

_SECONDS = 5.0  # of each answer
SENT = 250


@dataclass(frozen=True)
class Mailer:
    """An SMTP server and the address that messages come from."""

    scheme: str
    host: str
    port: int
    user: str | None
    password: str | None
    sender: str

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
            with self._connected() as server:
                if self.scheme == "smtp+starttls":
                    server.starttls(context=ssl.create_default_context())
                if self.user is not None:
                    server.login(self.user, self.password or "")
                server.send_message(message)
        except (smtplib.SMTPException, OSError) as error:
            raise Failed(f"the SMTP server {self.host} did not take it: {type(error).__name__}: {error}"[:500]) from None
        return SENT

    def _connected(self) -> smtplib.SMTP:
        if self.scheme == "smtps":
            return smtplib.SMTP_SSL(self.host, self.port, timeout=_SECONDS, context=ssl.create_default_context())
        return smtplib.SMTP(self.host, self.port, timeout=_SECONDS)
