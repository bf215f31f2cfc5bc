"""Webhooks: both libraries that receivers use verify what we send; tries, rotation, replay, 410, and the tenant's own alone."""

import json
import threading
from collections.abc import Iterator
from datetime import timedelta
from ipaddress import IPv4Network

import openai
import pytest
from sqlalchemy import func, select, update
from standardwebhooks.webhooks import Webhook as Standard
from standardwebhooks.webhooks import WebhookVerificationError

from service.database.engine import clock
from service.tenants.api_keys import Scope, mint_key
from service.webhooks import courier as courier_module
from service.webhooks.courier import WAITS, Courier
from service.webhooks.factories import box_of, outbound_of
from service.webhooks.models import Delivery, Webhook
from service.webhooks.webhook_messages import EventType
from tests.service.api import Caller
from tests.service.webhooks.receiver import Receiver
from tests.service.webhooks.serving import serving

HERE = IPv4Network("127.0.0.0/8")


@pytest.fixture(autouse=True)
def long_waits(monkeypatch) -> None:
    """No time for another try comes by itself, however slow a test is: `due` lets it come."""
    monkeypatch.setattr(courier_module, "WAITS", (timedelta(hours=3),) * len(WAITS))


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with serving(Receiver()) as made:
        yield made


@pytest.fixture(scope="module")
def settings(settings_for, database_url, tmp_path_factory):
    """Receivers on this machine may be called."""
    return settings_for(database_url, tmp_path_factory.mktemp("service"), webhook_networks=(HERE,))


@pytest.fixture
def courier(settings, database) -> Courier:
    return Courier(database, outbound_of(settings), box_of(settings))


@pytest.fixture
def due(database):
    """Let the time come at which a webhook's messages are tried again."""

    def act(webhook_id: str) -> None:
        with database.begin() as session:
            own = update(Delivery).where(Delivery.webhook_id == webhook_id, Delivery.status == "pending")
            session.execute(own.values(next_at=func.clock_timestamp() - timedelta(seconds=1)))

    return act


@pytest.fixture
def hook(tenant, receiver):
    """A webhook of the receiver, as its tenant was told of it."""
    said = {"url": receiver.url, "events": ["task.cancelled", "fine_tuning.job.cancelled"]}
    response = tenant.post("/v1/webhooks", json=said)
    assert response.status_code == 201, response.text
    return response.json()


def cancelled(tenant) -> str:
    task_id = tenant.task()["id"]
    assert tenant.post(f"/v1/tasks/{task_id}/cancel").status_code == 200
    return task_id


def sent(tenant, hook) -> list[dict]:
    return tenant.get(f"/v1/webhooks/{hook['id']}/deliveries").json()["data"]


def test_both_libraries_verify_what_is_sent(tenant, hook, receiver, courier):
    task_id = cancelled(tenant)
    assert courier.work_off_due() == 2
    types = set()
    for headers, body in receiver.got:
        said = Standard(hook["secret"]).verify(body, headers)
        assert (said["data"]["task_id"], said["data"]["status"], said["id"]) == (task_id, "cancelled", headers["webhook-id"])
        types.add(said["type"])
        client = openai.OpenAI(api_key="none", webhook_secret=hook["secret"])
        client.webhooks.verify_signature(body.decode(), headers)
        event = client.webhooks.unwrap(body.decode(), headers)
        assert (event.type, event.data.id, event.object) == (said["type"], task_id, "event")
        with pytest.raises(WebhookVerificationError):
            Standard(hook["secret"]).verify(body + b" ", headers)
    assert types == {"task.cancelled", "fine_tuning.job.cancelled"}
    assert {(one["status"], one["last_status"], one["attempts"]) for one in sent(tenant, hook)} == {("delivered", 200, 1)}
    assert courier.work_off_due() == 0


def test_slacks_format_is_text_without_a_signature(tenant, receiver, courier):
    said = {"url": receiver.url, "events": ["task.cancelled"], "format": "slack"}
    hook = tenant.post("/v1/webhooks", json=said).json()
    task_id = cancelled(tenant)
    assert courier.work_off_due() == 1
    ((headers, body),) = receiver.got
    assert json.loads(body) == {"text": f"*{task_id} was cancelled*"}
    assert "webhook-signature" not in headers
    assert (hook["format"], [one["status"] for one in sent(tenant, hook)]) == ("slack", ["delivered"])
    without = said | {"url": "mailto:a@b.example", "format": "email"}
    refused = tenant.post("/v1/webhooks", json=without)
    assert (refused.status_code, refused.json()["errors"][0]["code"]) == (422, "email_not_set_up")


def test_slacks_url_is_told_to_those_alone_who_may_change_it(tenant, database):
    url = "https://1.1.1.1/services/T0/B0/secret"
    hook = tenant.post("/v1/webhooks", json={"url": url, "events": ["task.failed"], "format": "slack"}).json()
    with database.begin() as session:
        reading = Caller(tenant.client, tenant.tenant_id, mint_key(session, tenant.tenant_id, "looks", (Scope.READ,))[1])
    for caller, told in ((tenant, url), (reading, "https://1.1.1.1/…")):
        shown = [caller.get(f"/v1/webhooks/{hook['id']}").json(), *caller.get("/v1/webhooks").json()["data"]]
        assert [one["url"] for one in shown] == [told, told]


def test_the_secret_is_shown_once_and_kept_sealed(tenant, hook, database):
    secret = hook["secret"]
    assert secret.startswith("whsec_")
    shown = [tenant.get(f"/v1/webhooks/{hook['id']}").json(), *tenant.get("/v1/webhooks").json()["data"]]
    assert [one["secret"] for one in shown] == [None, None]
    with database.begin() as session:
        row = session.get_one(Webhook, hook["id"])
        assert secret.encode() not in row.secret
        assert secret.removeprefix("whsec_").encode() not in row.secret


def test_after_a_rotation_both_secrets_verify_for_a_day(tenant, hook, receiver, courier, database):
    rotated = tenant.post(f"/v1/webhooks/{hook['id']}/rotate").json()
    assert rotated["secret"] != hook["secret"]
    tenant.post(f"/v1/webhooks/{hook['id']}/test")
    courier.work_off_due()
    headers, body = receiver.got[-1]
    for secret in (hook["secret"], rotated["secret"]):
        assert Standard(secret).verify(body, headers)["type"] == "webhook.test"
    with database.begin() as session:
        session.get_one(Webhook, hook["id"]).secret_before_until = clock(session) - timedelta(seconds=1)
    tenant.post(f"/v1/webhooks/{hook['id']}/test")
    courier.work_off_due()
    headers, body = receiver.got[-1]
    Standard(rotated["secret"]).verify(body, headers)
    with pytest.raises(WebhookVerificationError):
        Standard(hook["secret"]).verify(body, headers)


def test_a_failed_try_is_repeated_for_three_days_with_the_same_id(tenant, hook, receiver, courier, due):
    receiver.answers = [500] * (len(WAITS) + 1)
    tenant.post(f"/v1/webhooks/{hook['id']}/test")
    for tried in range(1, len(WAITS) + 2):
        assert courier.work_off_due() == 1
        assert courier.work_off_due() == 0  # not before its time
        (delivery,) = sent(tenant, hook)
        assert (delivery["attempts"], delivery["last_status"]) == (tried, 500)
        assert delivery["status"] == ("pending" if tried <= len(WAITS) else "failed")
        due(hook["id"])
    assert courier.work_off_due() == 0
    assert len({headers["webhook-id"] for headers, _ in receiver.got}) == 1
    assert len({body for _, body in receiver.got}) == 1
    assert timedelta(hours=70) < sum(WAITS, timedelta()) <= timedelta(days=3)


def test_a_message_is_replayed(tenant, hook, receiver, courier):
    cancelled(tenant)
    courier.work_off_due()
    delivery = sent(tenant, hook)[0]
    again = tenant.post(f"/v1/webhooks/{hook['id']}/deliveries/{delivery['id']}/replay")
    assert (again.status_code, again.json()["status"], again.json()["attempts"]) == (202, "pending", 0)
    assert courier.work_off_due() == 1
    assert receiver.got[-1][0]["webhook-id"] == delivery["id"]
    assert tenant.post(f"/v1/webhooks/{hook['id']}/deliveries/msg_0/replay").status_code == 404


def test_410_disables_the_webhook_until_it_is_enabled_again(tenant, hook, receiver, courier):
    receiver.answers = [410]
    for _ in range(2):
        tenant.post(f"/v1/webhooks/{hook['id']}/test")
    courier.work_off_due()
    shown = tenant.get(f"/v1/webhooks/{hook['id']}").json()
    assert (shown["enabled"], shown["disabled_because"]) == (False, "gone")
    before = len(sent(tenant, hook))
    cancelled(tenant)
    assert len(sent(tenant, hook)) == before
    changed = tenant.patch(f"/v1/webhooks/{hook['id']}", json={"enabled": True, "events": ["task.cancelled"]}).json()
    assert (changed["enabled"], changed["events"], changed["url"]) == (True, ["task.cancelled"], receiver.url)
    cancelled(tenant)
    assert courier.work_off_due() == 1


def test_a_disabled_webhook_keeps_what_waits(tenant, hook, receiver, courier):
    tenant.post(f"/v1/webhooks/{hook['id']}/test")
    tenant.patch(f"/v1/webhooks/{hook['id']}", json={"enabled": False})
    assert courier.work_off_due() == 0
    tenant.patch(f"/v1/webhooks/{hook['id']}", json={"enabled": True})
    assert courier.work_off_due() == 1


def test_what_a_dead_courier_had_in_hand_is_tried_again(tenant, hook, receiver, courier, due, database, settings):
    tenant.post(f"/v1/webhooks/{hook['id']}/test")
    other = Courier(database, outbound_of(settings), box_of(settings))
    assert len(other.take(2).rows) == 1  # and then nothing more is heard of it
    assert courier.work_off_due() == 0  # it could still be at it
    due(hook["id"])  # its time is over
    assert courier.work_off_due() == 1
    assert sent(tenant, hook)[0]["attempts"] == 2


def test_couriers_at_once_send_each_message_once(tenant, hook, receiver, courier, settings, database):
    for _ in range(20):
        tenant.post(f"/v1/webhooks/{hook['id']}/test")
    others = [courier, *(Courier(database, outbound_of(settings), box_of(settings)) for _ in range(3))]
    threads = [threading.Thread(target=one.work_off_due) for one in others]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(receiver.got) == 20
    assert len({headers["webhook-id"] for headers, _ in receiver.got}) == 20


def test_one_that_cannot_be_reached_is_told_so(tenant, receiver, courier, hook):
    receiver.shutdown()
    receiver.server_close()
    tenant.post(f"/v1/webhooks/{hook['id']}/test")
    courier.work_off_due()
    (delivery,) = sent(tenant, hook)
    assert (delivery["status"], delivery["last_status"]) == ("pending", None)
    assert "ConnectError" in delivery["last_error"]


@pytest.mark.parametrize(
    ("said", "field"),
    [
        ({"url": "http://10.0.0.1/x"}, "url"),
        ({"url": "http://169.254.169.254/latest"}, "url"),
        ({"url": "ftp://example.com"}, "url"),
        ({"url": "https://user:pass@example.com"}, "url"),
        ({"events": []}, "events"),
        ({"events": ["task.exploded"]}, "events[0]"),
        ({"events": ["webhook.test"]}, "events[0]"),
        ({"ur": "x"}, "ur"),
    ],
)
def test_a_webhook_that_may_not_be(tenant, said, field):
    response = tenant.post("/v1/webhooks", json={"url": "https://8.8.8.8/", "events": ["task.failed"]} | said)
    assert response.status_code == 422, response.text
    assert response.json()["errors"][0]["field"] == field


@pytest.mark.parametrize("field", ["url", "events", "enabled"])
def test_null_changes_no_webhook(tenant, hook, field):
    response = tenant.patch(f"/v1/webhooks/{hook['id']}", json={field: None})
    (error,) = response.json()["errors"]
    assert (response.status_code, error["field"]) == (422, field)
    assert error["message"].endswith("got null")


def test_webhooks_are_told_of_their_tenants_tasks_alone(tenant, new_tenant, hook, database):
    cancelled(new_tenant())
    with database.begin() as session:
        assert session.scalar(select(func.count()).where(Delivery.webhook_id == hook["id"])) == 0


def test_a_deleted_webhook_takes_its_messages_along(tenant, hook, database):
    tenant.post(f"/v1/webhooks/{hook['id']}/test")
    assert tenant.delete(f"/v1/webhooks/{hook['id']}").status_code == 204
    assert tenant.get(f"/v1/webhooks/{hook['id']}").status_code == 404
    with database.begin() as session:
        assert session.scalar(select(func.count()).where(Delivery.webhook_id == hook["id"])) == 0


def test_bodies_are_json_with_a_stable_text(tenant, hook, receiver, courier):
    tenant.post(f"/v1/webhooks/{hook['id']}/test")
    courier.work_off_due()
    headers, body = receiver.got[0]
    assert headers["content-type"] == "application/json"
    assert set(json.loads(body)) == {"id", "object", "type", "created_at", "timestamp", "data"}


def test_nobody_is_told_of_what_is_told_without_webhooks():
    """The statements that make tasks and that queue them know no webhooks."""
    assert not {"task.validating", "task.queued"} & set(EventType)
