"""The operator's webhook: signed messages of the state that there is, through failures, crashes and several reconcilers."""

import base64
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler

import pytest
from pydantic import SecretStr, ValidationError
from standardwebhooks.webhooks import Webhook as Standard
from standardwebhooks.webhooks import WebhookVerificationError

from service.autoscaling import announcement_pace
from service.autoscaling.webhook import AutoscalingWebhook
from service.settings import Settings
from tests.http_server import HangUpServer, read_body
from tests.service.background.queue_processes import Service
from tests.service.webhooks.serving import serving

SECRETS = tuple("whsec_" + base64.b64encode(letter * 32).decode() for letter in (b"n", b"o"))
PATIENCE = 120.0


class Scaler(HangUpServer):
    """An operator's program. It answers `status`; while `held` is cleared, nothing."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.status, self.held = 204, threading.Event()
        self.held.set()
        self.got: list[tuple[dict[str, str], bytes]] = []
        self._changed = threading.Condition()

    def note(self, headers: dict[str, str], body: bytes) -> None:
        with self._changed:
            self.got.append((headers, body))
            self._changed.notify_all()

    def messages(self, count: int) -> list[dict]:
        """Wait for so many in all."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.got) >= count, PATIENCE), len(self.got)
            return [json.loads(body) for _, body in self.got]


class _Handler(BaseHTTPRequestHandler):
    server: Scaler

    def do_POST(self) -> None:
        body = read_body(self)
        self.server.note({name.lower(): value for name, value in self.headers.items()}, body)
        self.server.held.wait(PATIENCE)
        self.send_response(self.server.status)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def scaler() -> Iterator[Scaler]:
    with serving(Scaler()) as made:
        yield made
        made.held.set()


@pytest.fixture
def webhook(settings, database, scaler):
    """The webhook of one reconciler; what it tells is on this machine, and no network is allowed for that. Changes settle at
    once unless the test says otherwise."""

    def make(settle: float = 0.0) -> AutoscalingWebhook:
        changes = {
            "autoscaling_url": f"http://127.0.0.1:{scaler.server_port}/scale",
            "autoscaling_secrets": tuple(SecretStr(secret) for secret in SECRETS),
            "autoscaling_settle_seconds": settle,
        }
        return AutoscalingWebhook(settings.model_copy(update=changes), database)

    return make


@pytest.fixture
def no_pauses(monkeypatch):
    monkeypatch.setattr(announcement_pace, "RETRIES", (0.0,))


def test_a_message_is_signed_and_holds_what_an_admin_reads(nothing_left, webhook, scaler, tenant, admin, plan, new_node):
    node = new_node()
    tenant.task(gpus=2)
    plan()
    webhook().run_due()
    (message,) = scaler.messages(1)
    headers, body = scaler.got[0]
    for secret in SECRETS:
        Standard(secret).verify(body, headers)
    with pytest.raises(WebhookVerificationError):
        Standard(SECRETS[0]).verify(body + b" ", headers)
    assert (message["type"], message["id"]) == ("autoscaling.state", headers["webhook-id"])
    read = admin.get("/v1/admin/autoscaling").json()
    assert read | {"at": None} == message["data"] | {"at": None}
    assert [one["name"] for one in message["data"]["idle_nodes"]] == [node.name]
    assert message["data"]["wanted"][0]["missing_gpus"] == 2


def test_only_changes_are_told(nothing_left, webhook, scaler, queue):
    mine = webhook()
    queue()
    for _ in range(3):
        mine.run_due()
    assert len(scaler.messages(1)) == 1
    queue()
    mine.run_due()
    mine.run_due()
    assert [m["data"]["wanted"][0]["tasks"] for m in scaler.messages(2)] == [1, 2]


def test_a_change_waits_until_it_has_settled(nothing_left, webhook, scaler, queue):
    mine = webhook(settle=3600.0)
    mine.run_due()
    queue()
    mine.run_due()
    assert [m["data"]["wanted"] for m in scaler.messages(1)] == [[]]


@pytest.mark.parametrize("status", [500, 302, 410])
def test_a_message_that_is_not_taken_is_repeated_as_the_state_that_there_is_then(
    nothing_left, webhook, scaler, queue, no_pauses, status, caplog
):
    mine = webhook()
    scaler.status = status
    mine.run_due()
    mine.run_due()
    assert [record.levelname for record in caplog.records if "autoscaling" in record.message] == ["WARNING"], "one for a row"
    assert SECRETS[0] not in caplog.text
    queue()
    scaler.status = 200
    mine.run_due()
    mine.run_due()
    messages = scaler.messages(3)
    assert len(messages) == 3
    assert [one["tasks"] for one in messages[-1]["data"]["wanted"]] == [1]


def test_a_receiver_that_is_away_costs_the_reconciler_nothing(nothing_left, webhook, scaler, queue, no_pauses):
    """`wake` returns while a call hangs, and what has changed meanwhile is told after it."""
    scaler.held.clear()
    mine = webhook()
    mine.wake()
    scaler.messages(1)
    queue()
    mine.wake()
    assert len(scaler.got) == 1
    scaler.held.set()
    messages = scaler.messages(2)
    assert [one["tasks"] for one in messages[1]["data"]["wanted"]] == [1]
    mine.close()


def test_a_process_that_starts_tells_the_state_that_there_is(nothing_left, webhook, scaler, queue):
    """Whatever the one before it had told, or had not yet: it kept nothing but that."""
    webhook().run_due()
    queue()
    for _ in range(2):  # two reconcilers
        webhook().run_due()
    assert [len(m["data"]["wanted"]) for m in scaler.messages(3)] == [0, 1, 1]


def test_without_a_url_nothing_is_read(settings, scaler):
    mine = AutoscalingWebhook(settings, None)  # type: ignore[arg-type]
    mine.wake()
    mine.close()
    assert scaler.got == []


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"autoscaling_url": "http://scaler/x"}, "need each other"),
        ({"autoscaling_secrets": SECRETS[0]}, "need each other"),
        ({"autoscaling_url": "http://u:p@scaler/x", "autoscaling_secrets": SECRETS[0]}, "without user name"),
        ({"autoscaling_url": "http://scaler/x", "autoscaling_secrets": "whsec_c2hvcnQ="}, "24 to 64 random bytes"),
        ({"autoscaling_url": "http://scaler/x", "autoscaling_secrets": SECRETS[0].removeprefix("whsec_")}, "must be whsec_"),
    ],
)
def test_mistakes_in_the_settings_are_told(settings, changes, said):
    given = {name: getattr(settings, name) for name in ("database_url", "app_database_url", "redis_url", "secret_key")}
    with pytest.raises(ValidationError, match=said):
        Settings(**given, storage_dir=settings.storage_dir, **changes)
    both = Settings(
        **given, storage_dir=settings.storage_dir, autoscaling_url="https://x/y?z=1", autoscaling_secrets=",".join(SECRETS)
    )
    assert len(both.autoscaling_secrets) == 2


def test_a_reconciler_that_is_killed_and_started_again_tells_what_came_meanwhile(
    settings, environment_of, nothing_left, scaler, queue, tmp_path
):
    changes = {
        "autoscaling_url": f"http://127.0.0.1:{scaler.server_port}/scale",
        "autoscaling_secrets": (SecretStr(SECRETS[0]),),
        "autoscaling_settle_seconds": 3600.0,
        "reconcile_seconds": 0.2,
    }
    mine = settings.model_copy(update=changes)
    for expected in ([], [1]):
        service = Service(mine, environment_of(mine), tmp_path)
        service.start("reconcile")
        try:
            messages = scaler.messages(len(expected) + 1)
        finally:
            service.kill("reconcile")
        assert [one["tasks"] for one in messages[-1]["data"]["wanted"]] == expected
        queue()
