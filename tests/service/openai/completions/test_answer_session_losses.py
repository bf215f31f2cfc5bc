"""Answer sessions whose executor, daemon or starter is lost. A scripted node."""

from datetime import timedelta
from typing import Any, cast

import openai
import pytest
from sqlalchemy import func, select, update

from service.background import reconciler
from service.completions.following import Following
from service.completions.models import CompletionRequest
from service.completions.session_starts import start_for_who_asks
from service.fleet.answer_sessions import end_over
from service.fleet.models import AnswerSession, Node
from tests.service.openai.completions.answerer import ABLE, Answerer, held, lapse, live, waiting
from tests.service.openai.completions.completion_executor import USER, piece, refused, text
from tests.service.scraped import samples

pytestmark = pytest.mark.usefixtures("nobody_asks")
LONG_AGO = func.clock_timestamp() - timedelta(hours=2)


def test_an_executor_killed_while_it_loads_is_replaced_once_and_then_told(ask, new_node, database, dependencies) -> None:
    node = new_node(said=ABLE)
    answer = ask("chat", messages=USER)
    waiting(database)
    assert start_for_who_asks(dependencies) == 1
    first = held(node)
    node.leases(first.pulse(phase="loading"))
    first.dies("the executor (pid 7) ended with -9")
    assert live(database) == []
    assert node.desired().sessions == []
    assert start_for_who_asks(dependencies) == 1, "one that dies once is replaced at once"
    second = held(node)
    assert second.id != first.id
    node.leases(second.pulse(phase="loading"))
    second.dies("the executor (pid 8) ended with -9")
    assert start_for_who_asks(dependencies) == 0
    said = refused(answer, openai.InternalServerError, "no_executor")
    assert "ended twice; it is tried again shortly. An admin sees why on the cluster page." in said.message
    assert "pid" not in said.message, "a worker's words are not for tenants"
    assert 30 < int(said.response.headers["retry-after"]) <= 60
    other = new_node(said=ABLE)
    again = ask("chat", messages=USER)
    waiting(database)
    assert start_for_who_asks(dependencies) == 1, "another node may hold it"
    held(other).answer("yes")
    assert again.result().choices[0].message.content == "yes"
    assert len(live(database)) == 1


def test_one_that_waits_for_room_ends_and_its_node_stays_open_to_tasks(
    ask, new_node, tenant, database, dependencies, plan
) -> None:
    node = new_node(said=ABLE)
    ask("chat", messages=USER)
    waiting(database)
    assert start_for_who_asks(dependencies) == 1
    there = held(node)
    assert node.leases(there.pulse(phase="loading", waits_for="it needs 9 GiB of the disk")).leases == []
    with database.begin() as session:
        assert session.scalars(select(Node.waits_for)).all() == [None]
        session.execute(update(AnswerSession).values(lease_until=func.now() - timedelta(seconds=1)))
    end_over(dependencies)
    assert live(database) == []
    task = tenant.task()
    plan()
    assert node.take(task["id"])


def test_one_that_loads_is_not_idle(ask, new_node, database, dependencies) -> None:
    node = new_node(said=ABLE)
    ask("chat", messages=USER)
    waiting(database)
    assert start_for_who_asks(dependencies) == 1
    there = held(node)
    for phase, left in (("loading", [there.id]), ("training", [])):
        with database.begin() as session:
            session.execute(update(AnswerSession).values(used_at=LONG_AGO))
        node.leases(there.pulse(phase=phase))
        end_over(dependencies)
        assert live(database) == left


def test_a_device_that_lost_executors_comes_last(ask, new_node, database, dependencies) -> None:
    node = new_node(slots=2, said=ABLE)
    with database.begin() as session:
        session.execute(update(Node).values(device_losses={"0": 1}))
    ask("chat", messages=USER)
    waiting(database)
    assert start_for_who_asks(dependencies) == 1
    assert held(node).given.device_indexes == [1]


def test_what_a_newer_version_started_hides_nothing_else(ask, new_node, database, dependencies) -> None:
    node = new_node(slots=2, said=ABLE)
    ask("chat", messages=USER)
    waiting(database)
    assert start_for_who_asks(dependencies) == 1
    with database.begin() as session:
        session.execute(update(AnswerSession).values(precision="int2"))
        session.execute(update(CompletionRequest).values(precision="int3"))
    assert node.desired().sessions == []
    answer = ask("chat", messages=USER, extra_body={"precision": "nf4"})
    waiting(database, 2)
    assert start_for_who_asks(dependencies) == 1
    there = held(node)
    assert there.given.base.precision == "nf4"
    there.answer("yes")
    assert answer.result().choices[0].message.content == "yes"


def test_a_lost_executor_wakes_who_starts_another(ask, new_node, database, dependencies, app, monkeypatch) -> None:
    woken: list[str] = []
    node = new_node(said=ABLE)
    answer = ask("chat", messages=USER)
    waiting(database)
    assert start_for_who_asks(dependencies) == 1
    monkeypatch.setattr(app.state.motet.queue, "wake", woken.append)
    held(node).dies()
    assert woken == ["answer"]
    assert start_for_who_asks(dependencies) == 1
    held(node).answer("yes")
    assert answer.result().choices[0].message.content == "yes"


def test_a_node_that_dies_while_it_loads_holds_nothing(ask, new_node, database, dependencies) -> None:
    node = new_node("a-dying", said=ABLE)
    answer = ask("chat", messages=USER)
    waiting(database)
    assert start_for_who_asks(dependencies) == 1
    node.leases(held(node).pulse(phase="loading"))
    other = new_node(said=ABLE)
    assert start_for_who_asks(dependencies) == 0
    with database.begin() as session:
        session.execute(update(AnswerSession).values(lease_until=func.now() - timedelta(seconds=1)))
    end_over(dependencies)
    assert live(database) == []
    assert start_for_who_asks(dependencies) == 1
    where = next(one for one in (node, other) if one.desired().sessions)
    held(where).answer("yes")
    assert answer.result().choices[0].message.content == "yes"


def test_a_daemon_that_starts_anew_in_the_middle_costs_no_answer(ask, new_node, database, dependencies) -> None:
    node = new_node(said=ABLE)
    for _ in range(2):  # twice in a minute is no fault of the base's
        answer = ask("chat", messages=USER)
        waiting(database)
        assert start_for_who_asks(dependencies) == 1
        before = held(node)
        node.leases(before.pulse())
        (work,) = before.next()
        assert before.sends(piece(work, 1, text("lo"))).json()["gone"] == []
        node.reboot()
        assert node.desired().sessions == []
        assert before.wants().json()["code"] == "fence_stale"
        lapse(database)
        waiting(database)
        assert start_for_who_asks(dependencies) == 1
        after = Answerer(node, held(node).given, "executor-2")
        assert after.answer("yes") == 1
        assert answer.result().choices[0].message.content == "yes", "what had not left yet begins anew"
        node.reboot()
    assert live(database) == []


def test_a_stream_whose_daemon_starts_anew_ends_with_an_error(ask, new_node, database, dependencies) -> None:
    node = new_node(said=ABLE)
    answer = ask("chat", messages=USER, stream=True)
    waiting(database)
    assert start_for_who_asks(dependencies) == 1
    there = held(node)
    (work,) = there.next()
    there.sends(piece(work, 1, text("lo")))
    stream = iter(answer.result())
    assert [next(stream).choices[0].delta.content for _ in range(2)] == ["", "lo"]
    node.reboot()
    lapse(database)
    with pytest.raises(openai.APIError, match="executor ended before the answer did"):
        next(stream)
    with database.begin() as session:
        assert session.scalars(select(CompletionRequest.state)).all() == ["ended"]


def test_the_reconciler_alone_starts_and_ends_them(ask, new_node, database, dependencies, monkeypatch) -> None:
    """No queue worker runs and no wake-up comes: rows are the only state."""
    node = new_node(said=ABLE)
    answer = ask("chat", messages=USER)
    waiting(database)
    version = node.leases().desired_version
    reconciler.once(dependencies)
    assert node.leases().desired_version > version, "a heartbeat tells the node, where Valkey cannot"
    there = held(node)
    node.leases(there.pulse())
    there.answer("yes")
    assert answer.result().choices[0].message.content == "yes"
    reconciler.once(dependencies)
    assert live(database) == [there.id]
    with database.begin() as session:
        session.execute(update(AnswerSession).values(used_at=LONG_AGO))
    reconciler.once(dependencies)
    assert live(database) == []
    assert node.desired().sessions == []


def forget(dependencies) -> None:
    """The reconciler's turn two hours later."""
    began, over = AnswerSession.created_at, AnswerSession.ended_at
    with dependencies.db.begin() as session:
        ago = timedelta(hours=2)
        session.execute(update(AnswerSession).values(created_at=began - ago, ended_at=over - ago))
    end_over(dependencies)
    with dependencies.db.begin() as session:
        assert session.scalars(select(AnswerSession.id)).all() == []


def test_a_device_is_free_again_and_its_seconds_are_counted(ask, new_node, admin, database, dependencies) -> None:
    node = new_node(said=ABLE)

    def told() -> tuple[float, ...]:
        found = samples(admin.get("/metrics"))
        names = ("motet_answer_sessions", "motet_answer_session_gpu_seconds_total")
        return tuple(found.get((name, "small"), 0.0) for name in names)

    assert told() == (0, 0)
    answer = ask("chat", messages=USER)
    waiting(database)
    assert start_for_who_asks(dependencies) == 1
    there = held(node)
    node.leases(there.pulse())
    there.answer("yes")
    answer.result()
    with database.begin() as session:
        session.execute(update(AnswerSession).values(created_at=AnswerSession.created_at - timedelta(seconds=500)))
    (count, running), later = told(), told()
    assert count == 1
    assert running > 500
    assert later[1] > running, "a session that lives counts on"
    node.reboot()
    (count, over), still = told(), told()
    assert count == 0
    assert still[1] == over
    forget(dependencies)
    assert told() == (0, over), "rows that are removed stay counted"
    ask("chat", messages=USER)
    waiting(database)
    assert start_for_who_asks(dependencies) == 1
    node.reboot()
    more = told()
    assert more[1] > over
    forget(dependencies)
    assert told() == more, "added to those before"


def test_who_follows_a_waiting_request_does_not_lock_it_from_who_claims_it(ask, new_node, database, dependencies) -> None:
    """A claim skips what is locked, and would then look again only after a whole poll."""
    node, nothing = new_node(said=ABLE), cast(Any, None)
    answer = ask("chat", messages=USER)
    waiting(database)
    assert start_for_who_asks(dependencies) == 1
    with database.begin() as session:
        request = session.scalars(select(CompletionRequest).with_for_update()).one()
        found = Following(dependencies.settings, dependencies.db, nothing, nothing, request.id, nothing)._look()
        assert (found.pieces, found.over, found.problem) == ([], False, None)
    held(node).answer("yes")
    answer.result()
