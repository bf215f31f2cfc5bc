"""Slack's format and e-mail: what arrives, what is tried again, and what is refused, with an SMTP server on loopback."""

import json
import socketserver
from collections.abc import Iterator
from email import message_from_bytes, policy
from ipaddress import IPv4Network

import pytest
from pydantic import SecretStr
from sqlalchemy import func, update

from service.http.outbound import Failed
from service.settings import Settings
from service.webhooks.courier import Courier
from service.webhooks.factories import courier_of
from service.webhooks.mail import Mailer
from service.webhooks.message_formats import email, slack_body
from service.webhooks.models import Delivery
from tests.service.webhooks.serving import serving

PUBLIC = "https://motet.example"


class SmtpServer(socketserver.ThreadingTCPServer):
    """Speaks as much SMTP as a client needs; answers DATA with the next of `answers`, then 250."""

    daemon_threads, allow_reuse_address = True, True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Session)
        self.got: list[tuple[list[str], bytes]] = []
        self.answers: list[bytes] = []

    @property
    def url(self) -> str:
        return f"smtp://127.0.0.1:{self.server_address[1]}"


class _Session(socketserver.StreamRequestHandler):
    server: SmtpServer

    def handle(self) -> None:
        self.wfile.write(b"220 here\r\n")
        commands: list[str] = []
        while line := self.rfile.readline().decode().strip():
            commands.append(line)
            verb = line[:4].upper()
            if verb == "DATA":
                self.wfile.write(b"354 go on\r\n")
                content = b"".join(iter(self.rfile.readline, b".\r\n"))
                self.server.got.append((commands.copy(), content))
                self.wfile.write((self.server.answers.pop(0) if self.server.answers else b"250 taken") + b"\r\n")
            else:
                self.wfile.write(b"221 bye\r\n" if verb == "QUIT" else b"250 ok\r\n")
                if verb == "QUIT":
                    return


@pytest.fixture(scope="module")
def smtp() -> Iterator[SmtpServer]:
    with serving(SmtpServer()) as made:
        yield made


@pytest.fixture(scope="module")
def settings(settings_for, database_url, tmp_path_factory, smtp) -> Settings:
    said = {"webhook_networks": (IPv4Network("127.0.0.0/8"),), "public_url": PUBLIC, "smtp_from": "motet@here.example"}
    return settings_for(database_url, tmp_path_factory.mktemp("service"), smtp_url=SecretStr(smtp.url), **said)


@pytest.fixture
def courier(settings, database) -> Courier:
    return courier_of(settings, database)


def made(tenant, **said):
    answer = tenant.post("/v1/webhooks", json={"events": ["task.cancelled"]} | said)
    assert answer.status_code == 201, answer.text
    assert answer.json()["secret"] is None
    return answer.json()


def sent(tenant, hook):
    (one,) = tenant.get(f"/v1/webhooks/{hook['id']}/deliveries").json()["data"]
    return one


def test_an_email_arrives_and_is_tried_again_until_it_is_taken(tenant, courier, smtp, database):
    hook = made(tenant, url="mailto:team@example.com", format="email")
    task = tenant.task(name="voices <a>\u2028")["id"]
    smtp.answers = [b"451 later"]
    assert tenant.post(f"/v1/tasks/{task}/cancel").status_code == 200
    assert courier.deliver_due() == 1
    first = sent(tenant, hook)
    assert (first["status"], first["attempts"]) == ("pending", 1)
    assert "451" in first["last_error"]
    with database.begin() as session:
        session.execute(update(Delivery).where(Delivery.id == first["id"]).values(next_at=func.clock_timestamp()))
    assert courier.deliver_due() == 1
    assert (sent(tenant, hook)["status"], sent(tenant, hook)["last_status"]) == ("delivered", 250)
    (_, before), (commands, content) = smtp.got[-2:]
    assert {"mail FROM:<motet@here.example>", "rcpt TO:<team@example.com>"} <= {one.partition(" size")[0] for one in commands}
    said = message_from_bytes(content, policy=policy.default)
    assert said["Message-ID"] == message_from_bytes(before, policy=policy.default)["Message-ID"] == f"<{first['id']}@motet>"
    assert (said["To"], said["Subject"]) == ("team@example.com", "Motet: voices <a>  was cancelled")
    assert f"{PUBLIC}/tasks/{task}" in said.get_content()


def test_a_server_that_is_gone_fails_the_attempt_alone():
    with socketserver.TCPServer(("127.0.0.1", 0), socketserver.BaseRequestHandler) as nobody:
        port = nobody.server_address[1]
    mailer = Mailer.of(f"smtp://127.0.0.1:{port}", None)
    payload = json.dumps({"id": "msg_1", "data": {"task_id": "t", "name": None, "status": "failed", "error": "no"}})
    with pytest.raises(Failed, match=r"127\.0\.0\.1 did not take it"):
        mailer.send(email(payload, None, mailer.sender, "a@b.example"))


def test_slack_is_sent_text():
    data = {"task_id": "task_1", "name": "a<b & c", "status": "succeeded", "winner_job_id": "job_9"}
    said = json.loads(slack_body(json.dumps({"id": "msg_1", "data": data}), PUBLIC + "/"))
    assert said == {"text": f"*a&lt;b &amp; c succeeded*\nWinner: job_9\n{PUBLIC}/tasks/task_1"}
    test = json.loads(slack_body(json.dumps({"id": "msg_1", "data": {"id": "w", "webhook_id": "w"}}), None))
    assert test == {"text": "*a test message: this webhook works*"}


@pytest.mark.parametrize(
    ("said", "code"),
    [
        ({"url": "mailto:a@b.example\nBcc: c@d.example", "format": "email"}, "address_wrong"),
        ({"url": "mailto:a@b.example,c@d.example", "format": "email"}, "address_wrong"),
        ({"url": "https://1.1.1.1/", "format": "email"}, "address_wrong"),
        ({"url": "mailto:a@b.example"}, "url_refused"),
        ({"url": "http://169.254.1.1/", "format": "slack"}, "url_refused"),
    ],
)
def test_what_is_refused(tenant, said, code):
    answer = tenant.post("/v1/webhooks", json={"events": ["task.failed"]} | said)
    assert (answer.status_code, answer.json()["errors"][0]["code"]) == (422, code)
