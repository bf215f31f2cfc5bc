"""The queue that tests of tasks hand to what validates them."""

import pytest

from service.messaging.queue import Queue


@pytest.fixture
def queue(settings):
    return Queue(settings.redis_url)
