"""Preemption where a task's narrowest width differs by node, since its base needs more GPUs of a smaller type."""

from datetime import timedelta

import pytest
from sqlalchemy import update

from contract.compatibility.capabilities import SHARDED_BASES, understood
from service.fleet.models import Node
from service.scheduler.state import snapshot
from service.scheduler.state.preemption.reclaim import due
from service.tasks.models import Task
from tests.service.scheduler.planned import live, start
from tests.service.scheduler.test_sharing_plans import GPU, SHARES
from tests.service.scheduler.test_widths import LONG, widths


@pytest.fixture
def overdue(database, plan):
    """Plan, then let this task have waited for three hours."""

    def age(id):
        plan()
        with database.begin() as session:
            session.execute(update(Task).where(Task.id == id).values(queued_at=Task.queued_at - timedelta(hours=3)))

    return age


def test_what_it_needs_is_not_borrowed_and_counts_in_full(new_tenant, small, plan, again, overdue):
    """Of the base's two GPUs none is spare, so a tenant that is owed one, for a base that fits on one, gets none of them."""
    node, holder, owner = small(2), new_tenant(), new_tenant()
    held = holder.task(isolation="dedicated", **LONG)["id"]
    plan()
    start(node, held)
    overdue(owner.task(isolation="dedicated", precision="nf4", **LONG)["id"])
    again()
    assert widths(node) == {held: 2}
    assert not any(placement.leave for placement in node.desired().placements), "each tenant is owed one of the two"


def test_nothing_is_spare_where_a_worker_shards_no_more(new_tenant, small, plan, overdue, database, dependencies):
    """By the rule its base does not fit there at all; it still runs on both GPUs, and needs both."""
    node, holder, owner = small(2), new_tenant(), new_tenant()
    held = holder.task(isolation="dedicated", **LONG)["id"]
    plan()
    start(node, held)
    overdue(owner.task(isolation="dedicated", precision="nf4", **LONG)["id"])
    with database.begin() as session:
        older = sorted(understood() - {SHARDED_BASES})
        session.execute(update(Node).where(Node.id == node.id).values(capabilities=older))
    with database.begin() as session:
        assert due(snapshot.read(session, dependencies), 600) is None


def test_sharers_are_not_moved_to_gpus_that_need_more_for_their_base(
    new_tenant, new_node, small, plan, again, overdue, database
):
    """They share one H200, which the other tenant's task needs; each of their bases takes two of the free L4s."""
    node, holder, owner = new_node(said=SHARES | GPU), new_tenant(), new_tenant()
    first = holder.task(**LONG)["id"]
    plan()
    start(node, first)
    second = holder.task()["id"]
    plan()
    start(node, second)
    assert [placed.beside for placed in live(database)] == [1, 1]
    small(4)
    overdue(owner.task(isolation="dedicated", max_gpus=1, **LONG)["id"])
    again()
    assert not any(placement.leave for placement in node.desired().placements)
