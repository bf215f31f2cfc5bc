"""Executors for who asks: where they start, who shares one, how they give way to tasks, what is refused. A scripted node."""

import re
from datetime import timedelta

import openai
import pytest
from sqlalchemy import func, select, update

from contract.compatibility.capabilities import ANSWERS_ONLY, understood
from service.completions.models import CompletionRequest
from service.completions.session_starts import start_for_who_asks
from service.fleet.answer_sessions import IDLE, SHUT, TAKEN, end_over
from service.fleet.models import AnswerSession, BaseModel, Node, Placement
from tests.service.openai.completions.answerer import ABLE, Answerer, held, waiting
from tests.service.openai.completions.completion_executor import USER, asking, refused
from tests.service.scheduler.test_widths import EIGHT

pytestmark = pytest.mark.usefixtures("nobody_asks")
PAST = func.clock_timestamp() - timedelta(minutes=5)


def test_tenants_share_an_executor_that_is_started_for_them(ask, server, new_tenant, new_node, database, dependencies) -> None:
    old, node = new_node(said={"capabilities": sorted(understood() - {ANSWERS_ONLY})}), new_node(said=ABLE)
    first = ask("chat", messages=USER)
    with asking(server, new_tenant().key) as theirs:
        second = theirs("chat", messages=USER)
        waiting(database, 2)
        assert start_for_who_asks(dependencies) == 1
        assert start_for_who_asks(dependencies) == 0, "both wait for the one that was started"
        assert old.desired().sessions == [], "an older worker would not understand it"
        there = held(node)
        assert there.given.base.name == "small"
        assert [lease.placement_id for lease in node.leases(there.pulse()).leases] == [there.id]
        assert there.answer("yes", 2) == 2
        assert [one.result().choices[0].message.content for one in (first, second)] == ["yes", "yes"]


def test_a_task_takes_the_device_at_once(ask, tenant, new_node, database, dependencies, plan) -> None:
    node = new_node(said=ABLE)
    answer = ask("chat", messages=USER)
    waiting(database)
    assert start_for_who_asks(dependencies) == 1
    there = held(node)
    task = tenant.task()
    plan()
    assert node.take(task["id"]).given.device_indexes == there.given.device_indexes
    assert node.desired().sessions == []
    assert there.wants().json()["code"] == "fence_stale"
    assert node.leases(there.pulse()).leases == []
    assert start_for_who_asks(dependencies) == 0, "the task's executor will answer"
    assert tenant.post(f"/v1/tasks/{task['id']}/cancel").is_success
    assert start_for_who_asks(dependencies) == 1, "once the task has left, the request has an executor again"
    held(node).answer("yes")
    assert answer.result().choices[0].message.content == "yes"


@pytest.mark.parametrize(
    ("copy_share", "asked", "given"),
    [(2.0, 4, 4), pytest.param(0.95, 1, 2, id="a copy would fit, but no job beside it")],
)
def test_who_asks_a_base_that_devices_share_is_told_at_once(
    ask, tenant, new_node, database, dependencies, plan, copy_share, asked, given
) -> None:
    with database.begin() as session:
        copy = 2 * session.get_one(BaseModel, "small").parameters  # bytes
    node = new_node(slots=4, memory=round(copy / copy_share), said=ABLE)
    task = tenant.task(gpus=asked, **EIGHT)
    plan()
    assert len(node.take(task["id"]).given.device_indexes) == given
    answer = ask("chat", messages=USER)
    waiting(database)
    assert start_for_who_asks(dependencies) == 0
    assert "none of the nodes that are ready (1) holds it" in refused(answer, openai.InternalServerError, "no_executor").message


@pytest.mark.parametrize("loading", [True, False])
def test_a_task_of_another_base_is_placed_at_the_next_plan(
    ask, tenant, new_node, database, dependencies, plan, loading
) -> None:
    node = new_node(said=ABLE)
    answer = ask("chat", messages=USER)
    waiting(database)
    assert start_for_who_asks(dependencies) == 1
    there = held(node)
    node.leases(there.pulse(phase="loading" if loading else "training"))
    task = tenant.task(precision="nf4")
    plan()
    placed = node.take(task["id"])
    assert tenant.get(f"/v1/tasks/{task['id']}").json()["status"] == "running"
    assert node.desired().sessions == []
    assert placed.given.base.precision == "nf4"
    with database.begin() as session:
        assert session.scalars(select(AnswerSession.end_reason)).all() == [TAKEN]
    alone = tenant.get("/v1/schedule").json()["nodes"][0]
    assert (alone["free"], alone["answering"]) == (0, [])
    assert start_for_who_asks(dependencies) == 0
    said = refused(answer, openai.InternalServerError, "no_executor")
    assert "tasks hold every device that could hold it (1)" in said.message


def test_it_is_let_go_when_idle_hung_or_drained(ask, new_node, database, dependencies) -> None:
    node = new_node(said=ABLE)

    def started() -> Answerer:
        with database.begin() as session:
            session.execute(AnswerSession.__table__.delete())
        assert start_for_who_asks(dependencies) == 1
        there = held(node)
        node.leases(there.pulse())
        return there

    def reason(**changes: object) -> str | None:
        with database.begin() as session:
            if changes:
                session.execute(update(AnswerSession).values(**changes))
        version = node.desired().version
        end_over(dependencies)
        with database.begin() as session:
            found = session.scalars(select(AnswerSession.end_reason)).one()
        assert (node.desired().version > version) == (found is not None), "its node hears of the end"
        assert bool(node.desired().sessions) == (found is None)
        return found

    ask("chat", messages=USER)
    waiting(database)
    started()
    assert reason() is None
    assert reason(used_at=PAST) == IDLE
    hung = started()
    assert node.leases(hung.pulse(progress_age=1e6)).leases == [], "an executor that hangs is not renewed"
    assert reason(lease_until=PAST) == "its lease ran out"
    started()
    with database.begin() as session:
        session.execute(update(Node).values(drained_at=func.clock_timestamp()))
    assert reason() == SHUT
    assert start_for_who_asks(dependencies) == 0


def test_a_planner_that_knows_no_sessions_is_cleaned_up_after(ask, tenant, new_node, database, dependencies, plan) -> None:
    """One of the version before places a task and leaves the session as it is."""
    node = new_node(said=ABLE)
    ask("chat", messages=USER)
    waiting(database)
    assert start_for_who_asks(dependencies) == 1
    there = held(node)
    tenant.task(precision="nf4")
    plan()
    with database.begin() as session:
        session.execute(
            update(AnswerSession).values(ended_at=None, end_reason=None, lease_until=func.now() + timedelta(minutes=5))
        )
    assert [one.placement_id for one in node.desired().sessions] == [there.id]
    end_over(dependencies)
    assert node.desired().sessions == []


def test_a_tenant_has_few_and_a_wrong_token_none(
    ask, server, new_tenant, new_node, database, dependencies, monkeypatch
) -> None:
    monkeypatch.setitem(dependencies.settings.__dict__, "completion_sessions_at_once", 1)
    node = new_node(slots=2, said=ABLE)
    answer = ask("chat", messages=USER)
    four = ask("chat", messages=USER, extra_body={"precision": "nf4"})
    waiting(database, 2)
    assert start_for_who_asks(dependencies) == 1
    there = held(node)
    (more, kept) = (four, answer) if there.given.base.precision == "bf16" else (answer, four)
    said = refused(more, openai.RateLimitError, "rate_limit_exceeded")
    assert "may have 1 at once of executors that only answer, and has them (small)" in said.message
    assert 60 < int(said.response.headers["retry-after"]) <= 120, "until the one it has may be idle"
    told = {"fence": 1, "executor": "executor-1", "room": 1, "held": [], "wait": 0}
    wrong = node.call("POST", f"placements/{there.id}/completions", "pt_1_x", told)
    assert (wrong.status_code, wrong.json()["code"]) == (401, "placement_token_refused")
    with asking(server, new_tenant().key) as theirs:
        other = {"bf16": "nf4", "nf4": "bf16"}[there.given.base.precision]
        again = ask("chat", messages=USER, extra_body={"precision": other})
        waiting(database, 2)
        second = theirs("chat", messages=USER, extra_body={"precision": other})
        waiting(database, 3)
        assert start_for_who_asks(dependencies) == 1, "another tenant has its own limit"
        assert start_for_who_asks(dependencies) == 0
        for one in node.desired().sessions:
            Answerer(node, one).answer("yes")
        assert [one.result().choices[0].message.content for one in (kept, second, again)] == ["yes"] * 3, "whom it may share"


@pytest.mark.parametrize("ends", [True, False])
def test_where_tasks_hold_all_devices_the_request_is_told_at_once(
    ask, tenant, new_node, database, dependencies, plan, ends
) -> None:
    new_node(said=ABLE)
    tenant.task(isolation="dedicated", precision="nf4")
    plan()
    with database.begin() as session:
        later = func.clock_timestamp() + timedelta(seconds=280)
        session.execute(update(Placement).values(expected_end=later if ends else None))
    answer = ask("chat", messages=USER)
    waiting(database)
    assert start_for_who_asks(dependencies) == 0
    said = refused(answer, openai.InternalServerError, "no_executor")
    assert said.status_code == 503
    assert "tasks hold every device that could hold it (1)" in said.message
    assert "while a task trains on this base" in said.message
    left = int(said.response.headers["retry-after"])
    if ends:
        assert re.search(r"first is expected to be free in [1-4] min", said.message)
        assert 60 < left <= 280, "as long as that, less what the test took"
    else:
        assert "no end is known" in said.message
        assert left == 30
    with database.begin() as session:
        assert session.scalars(select(CompletionRequest.state)).all() == ["ended"]


def test_what_no_node_can_hold_is_told_at_once(ask, new_node, database, dependencies) -> None:
    def told() -> str:
        answer = ask("chat", messages=USER)
        waiting(database)
        assert start_for_who_asks(dependencies) == 0
        return str(refused(answer, openai.InternalServerError, "no_executor").message)

    assert "no node is ready" in told()
    node = new_node(said=ABLE)
    with database.begin() as session:
        session.execute(update(BaseModel).values(parameters=10**13))
    assert "none of the nodes that are ready (1) holds it: it needs a device with 23283.06 GiB" in told()
    with database.begin() as session:
        session.execute(update(BaseModel).values(parameters=10**6))
        session.execute(update(Node).values(rests_until=func.now() + timedelta(minutes=5), quarantined_at=func.now()))
    assert "the nodes that could hold it (1) take nothing at the moment" in told()
    with database.begin() as session:
        session.execute(update(Node).values(rests_until=None, quarantined_at=None))
    other = ask("chat", messages=USER)
    waiting(database)
    assert start_for_who_asks(dependencies) == 1
    four = ask("chat", messages=USER, extra_body={"precision": "nf4"})
    waiting(database, 2)
    assert start_for_who_asks(dependencies) == 0
    assert "other bases that are asked hold every device" in refused(four, openai.InternalServerError, "no_executor").message
    held(node).answer("yes")
    assert other.result().choices[0].message.content == "yes"


def test_a_base_that_is_not_enabled_any_more_is_not_held(ask, new_node, database, dependencies) -> None:
    new_node(said=ABLE)
    answer = ask("chat", messages=USER)
    waiting(database)
    with database.begin() as session:
        session.execute(update(BaseModel).values(enabled=False))
    assert start_for_who_asks(dependencies) == 0
    with database.begin() as session:
        session.execute(update(BaseModel).values(enabled=True))
    assert "is not enabled" in refused(answer, openai.InternalServerError, "no_executor").message
