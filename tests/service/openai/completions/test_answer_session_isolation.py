"""Whose adapters an answer session may hold: those of tasks that share with nobody have executors of their own."""

import openai
import pytest
from sqlalchemy import func, select, update

from service.completions.session_starts import start_for_who_asks
from service.fleet.models import AnswerSession, Node, Placement
from tests.service.fleet.scripted import exited
from tests.service.openai.completions.answerer import ABLE, Answerer, held, lapse, waiting
from tests.service.openai.completions.completion_executor import USER, Executor, adapter_of, asking, piece, refused, text

pytestmark = pytest.mark.usefixtures("nobody_asks")


@pytest.fixture
def secret(training, database) -> str:
    """A job of a task that shared with nobody; the task has ended, with the job's adapter. Its node takes nothing more."""
    placement = training(isolation="dedicated")
    job = adapter_of(placement)
    placement.report(exited(1, 5))
    with database.begin() as session:
        session.execute(update(Node).where(Node.id == placement.node.id).values(drained_at=func.now()))
        assert session.get_one(Placement, placement.id).end_reason == "finished"
    return job


def test_an_adapter_of_a_dedicated_task_has_an_executor_of_its_own(
    secret, ask, server, new_tenant, new_node, database, dependencies
) -> None:
    node = new_node(slots=2, said=ABLE)
    with asking(server, new_tenant().key) as theirs:
        shared = theirs("chat", messages=USER)
        mine = ask("chat", messages=USER, model=secret)
        waiting(database, 2)
        assert start_for_who_asks(dependencies) == 2
        with database.begin() as session:
            own = session.scalars(select(AnswerSession.id).where(AnswerSession.dedicated)).one()
        both = {one.placement_id == own: Answerer(node, one, f"executor-{one.placement_id}") for one in node.desired().sessions}
        assert set(both) == {True, False}
        (base,) = both[False].next()
        assert base["adapter"] is None
        (adapter,) = both[True].next()
        assert adapter["adapter"]
        for one, work in ((both[False], base), (both[True], adapter)):
            one.sends(piece(work, 1, text(work["request_id"], finish_reason="stop"), over=True))
        assert shared.result().choices[0].message.content == base["request_id"]
        assert mine.result().choices[0].message.content == adapter["request_id"]
        more = theirs("chat", messages=USER)
        waiting(database)
        assert both[True].wants().json()["requests"] == [], "nor does the tenant's own executor answer others"
        both[False].answer("yes")
        more.result()


def test_where_one_device_is_there_the_dedicated_adapter_waits_for_none(
    secret, ask, server, new_tenant, new_node, database, dependencies
) -> None:
    node = new_node(said=ABLE)
    with asking(server, new_tenant().key) as theirs:
        shared = theirs("chat", messages=USER)
        waiting(database)
        assert start_for_who_asks(dependencies) == 1
        mine = ask("chat", messages=USER, model=secret)
        waiting(database, 2)
        assert start_for_who_asks(dependencies) == 0
        there = held(node)
        works = there.next()
        assert [work["adapter"] for work in works] == [None], "the executor that others share never gets it"
        there.sends(piece(works[0], 1, text("yes", finish_reason="stop"), over=True))
        assert shared.result().choices[0].message.content == "yes"
        assert (
            "other bases that are asked hold every device" in refused(mine, openai.InternalServerError, "no_executor").message
        )


def test_what_an_executor_has_ends_where_others_come_to_it(
    secret, ask, server, new_tenant, new_node, database, dependencies
) -> None:
    """The same process answered the dedicated adapter, and is now told to answer everybody."""
    node = new_node(said=ABLE)
    mine = ask("chat", messages=USER, model=secret)
    waiting(database)
    assert start_for_who_asks(dependencies) == 1
    own = held(node)
    (work,) = own.next()
    assert own.sends(piece(work, 1, text("sec"))).json()["gone"] == []
    with database.begin() as session:
        session.execute(update(AnswerSession).values(ended_at=func.now(), end_reason="nobody asked for a while"))
    with asking(server, new_tenant().key) as theirs:
        other = theirs("chat", messages=USER)
        waiting(database)
        assert start_for_who_asks(dependencies) == 1
        shared = held(node)
        given = shared.wants(held=(work["request_id"],)).json()
        assert given["gone"] == [work["request_id"]]
        assert shared.sends(piece(work, 2, text("ret", finish_reason="stop"), over=True)).json()["gone"] == [work["request_id"]]
        (theirs_work,) = given["requests"] or shared.next()
        shared.sends(piece(theirs_work, 1, text("yes", finish_reason="stop"), over=True))
        assert other.result().choices[0].message.content == "yes"
    lapse(database)
    waiting(database)
    node.reboot()
    assert start_for_who_asks(dependencies) == 1
    again = Answerer(node, held(node).given, "executor-3")
    assert again.answer("secret") == 1
    assert mine.result().choices[0].message.content == "secret"


def test_a_dedicated_request_does_not_wait_for_an_executor_that_its_tenant_shares(
    secret, ask, training, new_tenant, new_node, database, dependencies
) -> None:
    beside, theirs = training(), training(new_tenant())
    mine = ask("chat", messages=USER, model=secret)
    waiting(database)
    assert start_for_who_asks(dependencies) == 0, "its tenant is alone there, so it answers"
    node = new_node(said=ABLE)
    with database.begin() as session:  # as if that one had joined this one
        session.execute(update(Placement).where(Placement.id == theirs.id).values(node_id=beside.node.id))
    assert Executor(beside).wants()["requests"] == []
    assert start_for_who_asks(dependencies) == 1
    held(node).answer("secret")
    assert mine.result().choices[0].message.content == "secret"


def test_who_has_left_the_executor_keeps_no_dedicated_request_from_it(secret, ask, training, new_tenant, database) -> None:
    other = new_tenant()
    beside, theirs = training(), training(other)
    with database.begin() as session:  # as if that one had joined this one
        session.execute(update(Placement).where(Placement.id == theirs.id).values(node_id=beside.node.id))
    mine = ask("chat", messages=USER, model=secret)
    waiting(database)
    executor = Executor(beside)
    assert executor.wants()["requests"] == []
    assert other.post(f"/v1/tasks/{theirs.given.task_id}/cancel").status_code == 200
    executor.sends(piece(executor.next(), 1, text("secret", finish_reason="stop"), over=True))
    assert mine.result().choices[0].message.content == "secret"
