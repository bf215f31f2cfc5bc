"""Mail servers over loopback: TLS, login, and those that refuse, stay silent, or say one letter at a time."""

import contextlib
import json
import logging
import socket
import socketserver
import ssl
import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from pydantic import SecretStr, TypeAdapter, ValidationError

from service.http.outbound import Failed
from service.setting_types import SmtpUrl
from service.webhooks.mail import SENT, Mailer
from service.webhooks.message_formats import email
from tests.service.live_server import PATIENCE
from tests.service.webhooks.serving import serving
from tests.service.webhooks.smtp_server import SmtpServer

USER, PASSWORD = "motet@example.com", "pass:word/7"
ACCOUNT = "motet%40example.com:pass%3Aword%2F7@"


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of 127.0.0.1, with its key; it vouches for itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "mail")])
    day = timedelta(days=1)
    made = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    made = made.not_valid_before(datetime.now(UTC) - day).not_valid_after(datetime.now(UTC) + day)
    made = made.add_extension(x509.SubjectAlternativeName([x509.IPAddress(IPv4Address("127.0.0.1"))]), critical=False)
    made = made.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    path = tmp_path_factory.mktemp("certificate") / "mail.pem"
    plain = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    path.write_bytes(made.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM) + key.private_bytes(*plain))
    return path


@pytest.fixture
def tls(certificate: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    return context


@pytest.fixture
def trusted(certificate: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))


def mailer_of(url: str, sender: str | None = None) -> Mailer:
    """A server that stalls has not failed."""
    return replace(Mailer.of(url, sender), seconds=PATIENCE, all_seconds=PATIENCE)


def send(mailer: Mailer) -> int:
    payload = json.dumps({"id": "msg_1", "data": {"task_id": "t", "name": "voices", "status": "failed", "error": "no"}})
    return mailer.send(email(payload, None, mailer.sender, "team@example.com"))


@pytest.mark.parametrize("scheme", ["smtp+starttls", "smtps"])
def test_a_message_is_taken_after_tls_and_a_login(scheme, tls, trusted):
    with serving(SmtpServer(tls, smtps=scheme == "smtps", login=(USER, PASSWORD))) as server:
        assert send(mailer_of(f"{scheme}://{ACCOUNT}127.0.0.1:{server.port}")) == SENT
    ((commands, content),) = server.got
    assert ("STARTTLS" in commands) == (scheme == "smtp+starttls")
    assert b"Subject: Motet: voices failed" in content
    assert any(command.startswith("AUTH PLAIN") for command in commands)


@pytest.mark.parametrize("scheme", ["smtp+starttls", "smtps"])
def test_a_certificate_that_nobody_vouches_for_is_not_spoken_to(scheme, tls):
    with (
        serving(SmtpServer(tls, smtps=scheme == "smtps", login=(USER, PASSWORD))) as server,
        pytest.raises(Failed, match="CERTIFICATE_VERIFY_FAILED"),
    ):
        send(mailer_of(f"{scheme}://{ACCOUNT}127.0.0.1:{server.port}"))
    assert server.got == []


def test_a_server_without_starttls_gets_no_password():
    with serving(SmtpServer(login=(USER, PASSWORD))) as server, pytest.raises(Failed, match="STARTTLS"):
        send(mailer_of(f"smtp+starttls://{ACCOUNT}127.0.0.1:{server.port}"))
    assert server.got == []


def test_a_refused_login_is_told_without_the_account(tls, trusted, caplog):
    caplog.set_level(logging.DEBUG)
    with serving(SmtpServer(tls, login=(USER, "another"))) as server:
        mailer = mailer_of(f"smtp+starttls://{ACCOUNT}127.0.0.1:{server.port}", "motet@example.org")
        with pytest.raises(Failed, match=r"it refused the login \(535\)") as failed:
            send(mailer)
    for told in (str(failed.value), repr(mailer), caplog.text):
        assert PASSWORD not in told and USER not in told  # noqa: PT018


def test_logs_leave_the_account_out(settings):
    url = f"smtp+starttls://{ACCOUNT}127.0.0.1"
    assert {url, PASSWORD} <= set(settings.model_copy(update={"smtp_url": SecretStr(url)}).secrets)


def test_a_refused_recipient_fails_the_attempt_with_the_servers_words():
    with serving(SmtpServer(recipient="550 5.1.1 nobody here")) as server, pytest.raises(Failed, match="nobody here"):
        send(mailer_of(server.url))
    assert server.got == []


def test_a_client_that_hangs_up_within_a_message_has_sent_none():
    with serving(SmtpServer()) as server, socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE) as client:
        client.sendall(b"DATA\r\nhalf a message\r\n")
        client.shutdown(socket.SHUT_WR)
        while client.recv(2**10):
            pass  # until the server ends the session
        assert server.got == []


class _Stubborn(socketserver.BaseRequestHandler):
    """Says nothing, or its greeting one letter at a time, until the client is gone."""

    drips = False

    def handle(self) -> None:
        over = threading.Event()
        threading.Thread(target=self._until_gone, args=(over,), daemon=True).start()
        while not over.wait(0.05):
            if self.drips:
                with contextlib.suppress(OSError):
                    self.request.sendall(b"2")

    def _until_gone(self, over: threading.Event) -> None:
        with contextlib.suppress(OSError):
            while self.request.recv(64):
                pass
        over.set()


@pytest.fixture(params=[False, True], ids=["silent", "one letter at a time"])
def stubborn(request) -> Iterator[socketserver.ThreadingTCPServer]:
    handler = type("Stubborn", (_Stubborn,), {"drips": request.param})
    with serving(socketserver.ThreadingTCPServer(("127.0.0.1", 0), handler)) as server:
        yield server


@pytest.mark.parametrize("scheme", ["smtp", "smtps"])
def test_a_server_that_never_answers_fails_the_attempt_in_a_bounded_time(stubborn, scheme):
    """Without its limits this test would not end: the server waits for the client to go."""
    mailer = Mailer(scheme, "127.0.0.1", stubborn.server_address[1], None, None, "a@b.example", seconds=0.3, all_seconds=1)
    with pytest.raises(Failed, match=r"127\.0\.0\.1 did not take it"):
        send(mailer)


@pytest.mark.parametrize("url", ["smtp://user:se/cret@host", "smtp://user:x@host:secret", "smtp://host/secret", "ftp://secret"])
def test_a_url_that_cannot_be_read_is_refused_without_its_password(url):
    with pytest.raises(ValidationError, match="percent-encoded") as refused:
        TypeAdapter(SmtpUrl).validate_python(url)
    assert "se" not in str(refused.value.errors(include_input=False)[0]["msg"]).replace("user:password", "")


def test_an_account_that_smtp_cannot_send_fails_the_attempt_without_its_letters(tls, trusted):
    with serving(SmtpServer(tls, smtps=True, login=(USER, PASSWORD))) as server:
        mailer = mailer_of(f"smtps://user:p%C3%A4ss@127.0.0.1:{server.port}", "motet@example.org")
        with pytest.raises(Failed, match="cannot be sent over SMTP") as failed:
            send(mailer)
    assert "ä" not in str(failed.value)
