"""Preemption where a task's narrowest width differs by node, since its base needs more GPUs of a smaller type."""

from dataclasses import replace
from datetime import timedelta

import pytest
from sqlalchemy import update

from contract.compatibility.capabilities import SHARDED_BASES, understood
from service.fleet.models import Node
from service.scheduler.core.decision import ShortPreemption
from service.scheduler.core.preemption.owed_gpus import Held, Preemptor, preemption
from service.scheduler.core.problem import Limit, PlanNode, Queued, RunningExecutor, Start
from service.scheduler.state import snapshot
from service.scheduler.state.preemption.gpu_reservations import GpuReservation, kept
from service.scheduler.state.preemption.reclaim import due
from service.tasks.models import Task
from tests.service.scheduler.planned import live, start
from tests.service.scheduler.sharing import GPU, SHARES
from tests.service.scheduler.test_shortest_remaining import BUSY, HOUR, LEAVE, SHORT, made
from tests.service.scheduler.test_widths import LONG, widths

SMALL = [PlanNode("small", 2)]


# ---- values ----------------------------------------------------------------------------------------------------------


def test_a_reservation_holds_what_the_task_needs_there():
    """It asks for one GPU, of which one is free; its base needs two."""
    task = Queued("t", 1, 1, (50, 100), needs=(1, 2))
    nodes, reserved = [PlanNode("large", 1), *SMALL], [GpuReservation("t", "small", frozenset({"r"}))]
    found = kept(reserved, nodes, [RunningExecutor("r", "small", 1, 30)], [task])
    assert (found.due, found.awaited.keys(), found.queued) == ((), {"t"}, ())
    assert found.running == (RunningExecutor("t", "small", 2, 130),), "with the leaving task's GPU"
    free = kept(reserved, nodes, [], [task])
    assert free.due == (Start("t", "small", 0, 100, 2),)
    assert free.running == (RunningExecutor("t", "small", 2, 100),)
    stays = kept(reserved, nodes, [RunningExecutor("other", "small", 1, 30)], [task])
    assert (stays.due, stays.awaited, stays.queued) == ((), {}, (task,))


def test_a_reservation_is_kept_up_to_its_tenants_limit_and_no_further():
    """ada runs on one GPU; the two tasks take two more, and one."""
    running = [RunningExecutor("r", "n", 1, 30, "ada"), RunningExecutor("other", "n", 1, 30, "bo")]
    task, next_ = Queued("t", 1, 1, (50,), tenant="ada", needs=(2,)), Queued("u", 1, 1, (50,), tenant="ada")
    reserved = [GpuReservation(one, "n", frozenset()) for one in ("t", "u")]

    def starts(limit: int, worth: float = 1.0) -> list[str]:
        found = kept(reserved, [PlanNode("n", 5, worth=worth)], running, [task, next_], [Limit("ada", limit)])
        assert {one.id for one in found.queued} == {"t", "u"} - {start.task for start in found.due}
        return [start.task for start in found.due]

    assert [starts(limit) for limit in (1, 2, 3, 4)] == [[], ["u"], ["t"], ["t", "u"]]
    assert [starts(limit, worth=0.5) for limit in (0, 1, 2)] == [[], ["u"], ["t", "u"]], "GPUs of a slower type"


def test_a_reservation_waits_for_the_last_of_those_who_leave_and_leaves_them_the_rest():
    """The first holds three GPUs, of which one is needed beside a free one; the one elsewhere gives nothing here."""
    nodes, task = [PlanNode("n", 6), PlanNode("m", 9)], Queued("t", 2, 1, (50, 50))
    wide, last, stays = (RunningExecutor(id, "n", gpus, left) for id, gpus, left in (("w", 3, 20), ("l", 1, 40), ("s", 1, 90)))
    away, reserved = RunningExecutor("e", "m", 4, 700), [GpuReservation("t", "n", frozenset({"w", "l", "e"}))]
    found = kept(reserved, nodes, [stays, wide, last, away], [task])
    waits = RunningExecutor("t", "n", 2, 40 + 50)
    assert found.running == (stays, replace(wide, gpus=2), last, away, waits)
    drained = [replace(nodes[0], drained=True), nodes[1]]
    assert kept(reserved, drained, [stays, wide, last], [task]).queued == (task,)
    unfit = replace(task, seconds=(None, 50))
    assert kept(reserved, nodes, [stays, wide, last], [unfit]).queued == (unfit,)


def test_room_is_made_for_what_the_preemptor_needs_there():
    """Each holds one of the two GPUs, and its tenant is owed none of them."""
    held = [Held("a", "ada", "small", 1, 1, 100), Held("b", "ada", "small", 1, 1, 200)]
    preemptor = Preemptor("t", "bo", 1, 700, frozenset({"small"}), (("small", 2),))
    found = preemption([preemptor], held, SMALL, {"ada": 0.0, "bo": 2.0}, bound=600)
    assert found is not None
    assert found.victims == tuple(held)
    half = preemption([preemptor], held[:1], SMALL, {"ada": 0.0, "bo": 2.0}, bound=600)
    assert half is not None
    assert half.victims == tuple(held[:1]), "one free GPU is too few"
    mine = Held("mine", "bo", "elsewhere", 1, 1, 9)
    nodes = [*SMALL, PlanNode("elsewhere", 1)]
    assert preemption([preemptor], [*held, mine], nodes, {"ada": 0.0, "bo": 2.0}, bound=600) is None, "beyond its due"


def test_a_task_moves_only_where_all_that_it_needs_is_free():
    """It runs on one large GPU, and takes two small ones; its tenant is within its due, so it may only be moved."""
    held = Held("a", "ada", "large", 1, 1, 100, frozenset({"large", "small"}), needs=(("small", 2),))
    preemptor = Preemptor("t", "bo", 1, 700, frozenset({"large"}))

    def found(small: int, *more: Held, wide: int = 1):
        nodes = [PlanNode("large", wide), PlanNode("small", small)]
        asks = replace(preemptor, gpus=wide)
        return preemption([asks], [held, *more], nodes, {"ada": float(wide), "bo": 1.0}, bound=600)

    assert found(1) is None
    moved = found(2)
    assert moved is not None
    assert moved.victims == (held,)
    other = replace(held, task="b", age=200)
    assert found(3, other, wide=2) is None, "the first takes two of the three"
    both = found(4, other, wide=2)
    assert both is not None
    assert both.victims == (held, other)


def test_a_shorter_task_takes_back_as_many_as_it_needs_there():
    """Two long tasks hold one GPU each; the short one asks for one, and its base needs both."""
    nodes = (*BUSY.nodes, PlanNode("large", 1))
    running = (*BUSY.running, RunningExecutor("r", "large", 1, 40 * HOUR))
    short = replace(SHORT, seconds=(60, 60), needs=(2, 1))
    problem = replace(BUSY, nodes=nodes, running=running, queued=(short,))
    (one,) = made(problem)
    assert one == ShortPreemption("short", "n", ("longer", "long"), 60, 20 * HOUR - LEAVE)
    half = replace(problem, running=running[1:])
    (one,) = made(half)
    assert one == ShortPreemption("short", "n", ("longer",), 60, 30 * HOUR - LEAVE), "one free GPU is too few"
    assert made(replace(problem, limits=(Limit("ada", 3),))) == [], "its quota covers one more"
    third, next_ = replace(BUSY.running[0], id="third", remaining=30 * HOUR), replace(SHORT, id="next", seconds=(60, None))
    three = replace(problem, nodes=(PlanNode("n", 3), nodes[1]), running=(*running, third))
    three = replace(three, queued=(replace(short, weight=10**6, seconds=(5 * HOUR, None)), next_))
    assert [one.task for one in made(three)] == ["short", "next"], "the first leaves none of the three free"


# ---- rows ------------------------------------------------------------------------------------------------------------


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
