"""Slack's format and e-mail: what arrives, what is tried again, and what is refused, with an SMTP server on loopback."""

import json
from collections.abc import Iterator
from dataclasses import replace
from email import message_from_bytes, policy
from ipaddress import IPv4Network

import pytest
from pydantic import SecretStr
from sqlalchemy import func, update

from contract.states import TaskStatus
from service.http.outbound import Failed
from service.settings import Settings
from service.tasks.lifecycle.change_notices import bump_version_and_notify
from service.tasks.models import Task
from service.webhooks import factories
from service.webhooks.courier import Courier
from service.webhooks.factories import mailer_of
from service.webhooks.mail import Mailer
from service.webhooks.message_formats import email, slack_body
from service.webhooks.models import Delivery
from tests.service.live_server import PATIENCE
from tests.service.sample_tasks import jobs_of
from tests.service.webhooks.serving import serving
from tests.service.webhooks.smtp_server import SmtpServer

PUBLIC = "https://motet.example"


@pytest.fixture(scope="module")
def smtp() -> Iterator[SmtpServer]:
    with serving(SmtpServer()) as made:
        yield made


@pytest.fixture(scope="module")
def settings(settings_for, database_url, tmp_path_factory, smtp) -> Settings:
    said = {"webhook_networks": (IPv4Network("127.0.0.0/8"),), "public_url": PUBLIC, "smtp_from": "motet@here.example"}
    return settings_for(database_url, tmp_path_factory.mktemp("service"), smtp_url=SecretStr(smtp.url), **said)


@pytest.fixture
def courier(settings, database, monkeypatch) -> Courier:
    """A server that stalls has not failed."""
    patient = replace(mailer_of(settings), seconds=PATIENCE, all_seconds=PATIENCE)
    monkeypatch.setattr(factories, "mailer_of", lambda settings: patient)
    return factories.courier_of(settings, database)


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
    assert courier.work_off_due() == 1
    first = sent(tenant, hook)
    assert (first["status"], first["attempts"]) == ("pending", 1)
    assert "451" in first["last_error"]
    with database.begin() as session:
        session.execute(update(Delivery).where(Delivery.id == first["id"]).values(next_at=func.clock_timestamp()))
    assert courier.work_off_due() == 1
    assert (sent(tenant, hook)["status"], sent(tenant, hook)["last_status"]) == ("delivered", 250)
    (_, before), (commands, content) = smtp.got[-2:]
    assert {"mail FROM:<motet@here.example>", "rcpt TO:<team@example.com>"} <= {one.partition(" size")[0] for one in commands}
    said = message_from_bytes(content, policy=policy.default)
    assert said["Message-ID"] == message_from_bytes(before, policy=policy.default)["Message-ID"] == f"<{first['id']}@motet>"
    assert (said["To"], said["Subject"]) == ("team@example.com", "Motet: voices <a>  was cancelled")
    assert f"{PUBLIC}/tasks/{task}" in said.get_content()


def test_a_server_that_is_gone_fails_the_attempt_alone(free_port):
    mailer = Mailer.of(f"smtp://127.0.0.1:{free_port()}", None)
    payload = json.dumps({"id": "msg_1", "data": {"task_id": "t", "name": None, "status": "failed", "error": "no"}})
    with pytest.raises(Failed, match=r"127\.0\.0\.1 did not take it"):
        mailer.send(email(payload, None, mailer.sender, "a@b.example"))


def test_slack_is_sent_text():
    data = {"task_id": "task_1", "name": "a<b & c", "status": "succeeded", "winner_job_id": "job_9"}
    winner = {"index": 3, "label": "lr 0.001, rank 8", "val_loss": 1.23456}
    said = json.loads(slack_body(json.dumps({"id": "msg_1", "data": data | {"winner": winner}}), PUBLIC + "/"))
    told = "Winner: job 3 (lr 0.001, rank 8), validation loss 1.235"
    assert said == {"text": f"*a&lt;b &amp; c succeeded*\n{told}\n{PUBLIC}/tasks/task_1"}
    for unknown in ({}, {"winner": None}, {"winner": winner | {"label": None}}):  # of the version before, or of a newer one
        before = json.loads(slack_body(json.dumps({"id": "msg_1", "data": data | unknown}), None))
        assert before == {"text": "*a&lt;b &amp; c succeeded*\nWinner: job_9"}
    test = json.loads(slack_body(json.dumps({"id": "msg_1", "data": {"id": "w", "webhook_id": "w"}}), None))
    assert test == {"text": "*a test message: this webhook works*"}


def test_the_winner_is_told_by_what_it_was_trained_with(tenant, courier, smtp, database):
    hook = made(tenant, url="mailto:team@example.com", format="email", events=["task.succeeded"])
    task = tenant.task(name="voices")["id"]
    with database.begin() as session:
        row = session.get_one(Task, task, with_for_update=True)
        job = jobs_of(session, task)[1]
        job.best_val_loss, row.winner_job_id, row.status = 0.5, job.id, TaskStatus.SUCCEEDED
        config = job.config
        bump_version_and_notify(session, row)
    assert courier.work_off_due() == 1
    assert sent(tenant, hook)["status"] == "delivered"
    said = message_from_bytes(smtp.got[-1][1], policy=policy.default).get_content()
    told = f"lr {config['learning_rate']:g}, rank {config['rank']}, batch {config['batch_size']}"
    assert f"Winner: job 1 ({told}), validation loss 0.5" in said.splitlines()


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
    assert (answer.status_code, [one["code"] for one in answer.json()["errors"]]) == (422, [code])


@pytest.mark.parametrize(
    ("said", "code", "words"),
    [
        ({"url": "ftp://example.com/"}, "url_refused", "must be of the form https://host/path"),
        ({"url": "https://example.com/#part", "format": "slack"}, "url_refused", "may not end in a #fragment"),
        ({"url": "https://example.com/", "format": "email"}, "address_wrong", "must be mailto: and one address"),
    ],
)
def test_all_that_is_wrong_is_told_at_once(tenant, said, code, words):
    for more, others in (
        ({}, [("events", "missing")]),
        ({"events": ["task.fails"], "colour": 1}, [("events[0]", "literal_error"), ("colour", "extra_forbidden")]),
    ):
        errors = tenant.post("/v1/webhooks", json=said | more).json()["errors"]
        assert [(one["field"], one["code"]) for one in errors] == [("url", code), *others]
        assert words in errors[0]["message"]
    (unknown, missing) = tenant.post("/v1/webhooks", json=said | {"format": "fax"}).json()["errors"]
    assert (unknown["field"], missing["field"]) == ("format", "events")
    kept = made(tenant, url="https://1.1.1.1/", format="slack")["id"]
    changed = {"url": "ftp://example.com/", "events": []}
    for change, codes in ((changed, ["url_refused", "too_short"]), ({"url": "mailto:team@example.com"}, ["url_refused"])):
        answer = tenant.patch(f"/v1/webhooks/{kept}", json=change)
        assert (answer.status_code, [one["code"] for one in answer.json()["errors"]]) == (422, codes)
