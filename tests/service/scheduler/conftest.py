"""The fleet's fixtures, for the tests of this folder, and one to plan again."""

import pytest

from service.messaging.plan_requests import request_plan
from tests.service.fleet.fixtures import dependencies, new_node, nothing_left, plan, rested

__all__ = ["dependencies", "new_node", "nothing_left", "plan", "rested"]


@pytest.fixture
def again(dependencies, plan):
    """Plan once more, whatever has changed."""

    def turn():
        with dependencies.db.begin() as session:
            request_plan(session, dependencies.queue, "test")
        return plan()

    return turn
