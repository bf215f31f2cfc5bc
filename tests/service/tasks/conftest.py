"""What tests of tasks share: the queue that is handed to what validates them, a browser that is signed in."""

import pytest
from fastapi.testclient import TestClient

from service.messaging.queue import Queue


@pytest.fixture
def queue(settings):
    return Queue(settings.redis_url)


@pytest.fixture
def browser(client, tenant):
    made = TestClient(client.app, raise_server_exceptions=False, follow_redirects=False)
    made.cookies = made.post("/sign-in", data={"key": tenant.key}).cookies
    return made
