"""What preemption for shorter tasks is given: dues, and what a waiting task's weight is."""

from datetime import timedelta

from sqlalchemy import update

from service.database.engine import clock
from service.scheduler.core.fair_share import Share
from service.scheduler.state import snapshot
from service.scheduler.state.preemption.preemption_costs import TenantDues
from service.tasks.models import Task
from tests.service.scheduler.planned import validated


def test_dues_count_where_another_tenant_is_active() -> None:
    ada, bo = Share("ada", demand=4), Share("bo", demand=4)
    assert dict(TenantDues([ada, bo], {"g": 8}).owed) == {"ada": 4, "bo": 4}
    assert TenantDues([ada, Share("bo", active=False)], {"g": 8}).owed == ()


def test_who_has_waited_longer_may_preempt_more(tenant, plan, database, dependencies) -> None:
    """As much more as it goes before in the queue: six hours double a weight."""
    long, now = (validated(dependencies, tenant) for _ in range(2))
    with database.begin() as session:
        since = clock(session) - timedelta(hours=6)
        session.execute(update(Task).where(Task.id == long).values(queued_at=since))
    with database.begin() as session:
        weight = {one.id: one.preempts for one in snapshot.read(session, dependencies).problem.queued}
    assert weight[long] > 1.5 * weight[now]
