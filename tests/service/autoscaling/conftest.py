"""The fleet's fixtures, and tasks that are queued before any plan has looked at them."""

import pytest

from service.tasks.submission.stored_file_check import validate_due
from tests.service.fleet.fixtures import dependencies, new_node, nothing_left, plan

__all__ = ["dependencies", "new_node", "nothing_left", "plan"]


@pytest.fixture
def queue(dependencies, tenant):
    """Queue a task of the tenant's."""

    def make(**changes) -> None:
        tenant.task(**changes)
        validate_due(dependencies.db, dependencies.storage, dependencies.queue)

    return make
