"""What tests of the planner share: tasks that are ready to be planned, started ones, and what lies in the tables."""

from sqlalchemy import select, update

from contract.states import TaskStatus
from service.database.engine import Database
from service.fleet.models import Placement
from service.messaging.plan_requests import request_plan
from service.tasks.models import Task
from tests.service.fleet.scripted import moved


def rows(database: Database, model):
    with database.begin() as session:
        return list(session.scalars(select(model).order_by(model.id)))


def live(database):
    return [placement for placement in rows(database, Placement) if placement.ended_at is None]


def validated(dependencies, tenant, **changes):
    """A task that has been validated and not yet planned."""
    task = tenant.task(**changes)
    with dependencies.db.begin() as session:
        session.execute(update(Task).where(Task.id == task["id"]).values(status=TaskStatus.QUEUED))
        request_plan(session, dependencies.queue, "task_arrived")
    return task["id"]


def start(node, task_id, attached=True):
    placement = node.take(task_id)
    node.leases(placement.pulse())
    if attached:
        placement.report(placement.attached(), moved(0, "warmup"), moved(1, "warmup"))
    return placement
