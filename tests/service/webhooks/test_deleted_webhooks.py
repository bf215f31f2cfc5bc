"""A webhook that is deleted at the moment at which something is told to it: it gets no message, and nobody is refused."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import select

from service.webhooks.models import Delivery, Webhook
from tests.service.live_server import until
from tests.service.lock_waits import waiting_for_locks
from tests.service.webhooks import test_webhooks

settings, hook, receiver = test_webhooks.settings, test_webhooks.hook, test_webhooks.receiver


@pytest.fixture
def deleted_meanwhile(database, hook):
    """Make a request while the webhook is being deleted; its response."""

    def act(request):
        with ThreadPoolExecutor(1) as pool:
            with database.begin() as session:
                session.delete(session.get_one(Webhook, hook["id"]))
                session.flush()
                answer = pool.submit(request)
                until(lambda: waiting_for_locks(database) == 1)
            return answer.result()

    return act


def test_a_task_ends_all_the_same(tenant, deleted_meanwhile, database):
    task = tenant.task()
    answer = deleted_meanwhile(lambda: tenant.post(f"/v1/tasks/{task['id']}/cancel"))
    assert (answer.status_code, answer.json()["status"]) == (200, "cancelled")
    with database.begin() as session:
        assert not session.scalars(select(Delivery).where(Delivery.tenant_id == tenant.tenant_id)).all()


def test_a_test_message_finds_no_webhook(tenant, deleted_meanwhile, hook):
    assert deleted_meanwhile(lambda: tenant.post(f"/v1/webhooks/{hook['id']}/test")).status_code == 404
