"""A task of two jobs that a scripted node has taken up, and its rows."""

import pytest
from sqlalchemy import select

from service.tasks.models import Job, Task


@pytest.fixture
def placement(tenant, new_node, plan):
    """A task of two jobs, placed and taken up."""
    node, task = new_node(), tenant.task()
    plan()
    taken = node.take(task["id"])
    taken.report(taken.attached())
    return taken


@pytest.fixture
def jobs(database, placement):
    """The task's jobs as they are now: `jobs()[0].status`."""

    def read() -> list[Job]:
        with database.begin() as session:
            return list(session.scalars(select(Job).where(Job.task_id == placement.given.task_id).order_by(Job.index)))

    return read


@pytest.fixture
def task_of(database, placement):
    def read() -> Task:
        with database.begin() as session:
            return session.get_one(Task, placement.given.task_id)

    return read
