"""The fleet's fixtures, for the tests of this folder, and one to plan again."""

import pytest

from service.messaging.plan_requests import request_plan
from tests.service.fleet.fixtures import new_node, nothing_left, parts, plan, rested

__all__ = ["new_node", "nothing_left", "parts", "plan", "rested"]


@pytest.fixture
def again(parts, plan):
    """Plan once more, whatever has changed."""

    def turn():
        with parts.db.begin() as session:
            request_plan(session, parts.queue, "test")
        return plan()

    return turn
