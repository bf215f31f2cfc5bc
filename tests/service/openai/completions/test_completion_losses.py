"""Completions whose executor, client or API process is lost, limits, and whom an executor answers."""

import http.client
import json
import threading
from concurrent.futures import ThreadPoolExecutor

import httpx
import openai
import pytest
from sqlalchemy import func, select, update
from sqlalchemy import text as text_of

from service.background.retention import Retention, forget
from service.completions import following
from service.completions.executor_claims import CLAIM_SECONDS
from service.completions.models import CompletionRequest
from service.completions.requests import ASKER_SECONDS
from service.tenants.models import Tenant
from service.usage.models import CompletionUsage
from tests.service.fleet.scripted import points
from tests.service.live_server import PATIENCE, until
from tests.service.lock_waits import waiting_for_locks
from tests.service.openai.completions.completion_executor import USER, Executor, asking, piece, refused, text


def test_limits_of_requests_and_tokens(ask, executor, tenant, server, app, database, admin, monkeypatch) -> None:
    for state in (server.state, app.state.motet):
        changes = {"completion_requests_at_once": 2, "completion_tokens_per_minute": 1000, "completion_max_tokens": 901}
        for name, value in changes.items():
            monkeypatch.setitem(state.settings.__dict__, name, value)
    first = ask("chat", messages=USER, max_tokens=100)
    work = executor.next()
    big = refused(ask("chat", messages=USER, max_tokens=901), openai.RateLimitError, "rate_limit_exceeded")
    assert "1000 tokens a minute" in big.message
    never = refused(ask("text", prompt="x", n=2, max_tokens=501), openai.BadRequestError, "too_large", "max_tokens")
    assert "may take 1002 tokens in all; a tenant may use 1000 a minute" in never.message
    assert big.response.headers["retry-after"] == "60"
    second = ask("chat", messages=USER, max_tokens=100)
    other = executor.next()
    many = refused(ask("chat", messages=USER, max_tokens=10), openai.RateLimitError, "rate_limit_exceeded")
    assert "2 at once" in many.message
    for one in (work, other):
        executor.sends(piece(one, 1, text("yes", finish_reason="stop"), over=True))
    assert [one.result().choices[0].message.content for one in (first, second)] == ["yes", "yes"]
    third = ask("chat", messages=USER, max_tokens=900)  # what the first took less than it might have is free again
    executor.sends(piece(executor.next(), 1, text("yes", finish_reason="stop"), over=True))
    third.result()
    with database.begin() as session:
        session.execute(update(Tenant).where(Tenant.id == tenant.tenant_id).values(month_tokens_quota=20))
    over = refused(ask("chat", messages=USER, max_tokens=10), openai.PermissionDeniedError, "quota_exceeded")
    assert "month tokens is 20" in over.message


def begun(ask, executor):
    """A stream whose first piece was read, and its work."""
    answer = ask("chat", messages=USER, stream=True)
    work = executor.next()
    executor.sends(piece(work, 1, text("lo")))
    stream = iter(answer.result())
    assert [next(stream).choices[0].delta.content for _ in range(2)] == ["", "lo"]
    return work, stream


def test_an_executor_that_ends_in_the_middle_of_a_stream_ends_it_with_an_error(ask, executor, database) -> None:
    work, stream = begun(ask, executor)
    with database.begin() as session:
        session.execute(
            update(CompletionRequest).where(CompletionRequest.id == work["request_id"]).values(claimed_until=func.now())
        )
    with pytest.raises(openai.APIError, match="executor ended before the answer did"):
        next(stream)


def test_a_database_that_fails_in_the_middle_of_a_stream_ends_it_with_an_error(ask, executor, database) -> None:
    work, stream = begun(ask, executor)
    with database.begin() as session:
        session.execute(text_of("LOCK TABLE completion_pieces IN ACCESS EXCLUSIVE MODE"))
        until(lambda: waiting_for_locks(database))
        session.execute(
            text_of("""SELECT pg_terminate_backend(pid) FROM pg_stat_activity
            WHERE wait_event_type = 'Lock' AND datname = current_database()""")
        )
    with pytest.raises(openai.APIError, match="database does not answer in time") as caught:
        next(stream)
    assert caught.value.code == "database_unavailable"
    until(lambda: executor.wants(room=0, held=(work["request_id"],))["gone"] == [work["request_id"]])


@pytest.mark.parametrize("streams", [True, False])
def test_a_client_that_goes_away_cancels_its_request(server, tenant, executor, streams, database) -> None:
    gone, claimed = threading.Event(), threading.Event()

    def leave() -> None:
        client = httpx.Client(timeout=PATIENCE)
        said = {"model": "small", "messages": USER, "stream": streams}
        with client.stream("POST", f"{server.url}/openai/v1/chat/completions", headers=tenant.headers, json=said) as answer:
            if streams:
                next(answer.iter_text())
            gone.set()

    def leave_unanswered() -> None:
        said, headers = json.dumps({"model": "small", "messages": USER}), {"Content-Type": "application/json"} | tenant.headers
        connection = http.client.HTTPConnection(server.url.removeprefix("http://"))
        connection.request("POST", "/openai/v1/chat/completions", said, headers)
        if claimed.wait(PATIENCE):
            gone.set()
        connection.close()

    thread = threading.Thread(target=leave if streams else leave_unanswered)
    thread.start()
    work = executor.next()
    executor.sends(piece(work, 1, text("lo")))
    claimed.set()
    thread.join()
    assert gone.is_set()
    held = (work["request_id"],)
    until(lambda: executor.wants(room=0, held=held)["gone"] == [work["request_id"]])
    executor.sends(piece(work, 2, over=True))
    with database.begin() as session:
        used = session.scalars(select(CompletionUsage).where(CompletionUsage.tenant_id == tenant.tenant_id)).one()
        assert (used.prompt_tokens, used.completion_tokens) == (5, 4), "what was generated until then is billed"


@pytest.mark.parametrize("streams", [True, False])
def test_a_key_that_is_revoked_ends_its_requests(server, tenant, executor, streams) -> None:
    key = tenant.post("/v1/keys", json={"name": "leaked", "scopes": ["read", "write"]}).json()
    with asking(server, key["secret"]) as leaked:
        answer = leaked("chat", messages=USER, stream=streams)
        work = executor.next()
        executor.sends(piece(work, 1, text("lo")))
        if streams:
            stream = iter(answer.result())
            assert [next(stream).choices[0].delta.content for _ in range(2)] == ["", "lo"]
        assert tenant.delete(f"/v1/keys/{key['id']}").status_code == 200
        if streams:
            with pytest.raises(openai.APIError, match="key was revoked") as caught:
                next(stream)
            assert caught.value.code == "key_refused"
        else:
            refused(answer, openai.AuthenticationError, "key_refused")
        until(lambda: executor.wants(room=0, held=(work["request_id"],))["gone"] == [work["request_id"]])


def test_whose_api_process_has_died_waits_for_nobody(ask, executor, database, monkeypatch) -> None:
    answer = ask("chat", messages=USER)
    work = executor.next()
    assert executor.wants(held=(work["request_id"],))["gone"] == []
    monkeypatch.setattr(following, "ASKER_SECONDS", 0)  # the process of this test lives, and would renew what has run out
    with database.begin() as session:
        session.execute(
            update(CompletionRequest).where(CompletionRequest.id == work["request_id"]).values(asker_until=func.now())
        )
    assert executor.wants(held=(work["request_id"],))["gone"] == [work["request_id"]]
    executor.sends(piece(work, 1, text("x", finish_reason="stop"), over=True))
    answer.result()


def test_an_answer_that_comes_steadily_is_waited_for_until_its_deadline(ask, executor, database, monkeypatch) -> None:
    monkeypatch.setattr(following, "_TICK_SECONDS", following.ASKER_SECONDS)  # nothing but news wakes who follows
    work, stream = begun(ask, executor)
    own = CompletionRequest.id == work["request_id"]
    with database.begin() as session:
        session.execute(update(CompletionRequest).where(own).values(asker_until=func.now()))
    executor.sends(piece(work, 2, text("st")))
    assert next(stream).choices[0].delta.content == "st"
    assert executor.wants(room=0, held=(work["request_id"],))["gone"] == []
    with database.begin() as session:
        session.execute(update(CompletionRequest).where(own).values(deadline=func.now()))
    executor.sends(piece(work, 3, text("!")))
    assert next(stream).choices[0].delta.content == "!"
    with pytest.raises(openai.APIError, match="took longer than"):
        next(stream)


def test_claims_are_renewed_in_the_order_in_which_pieces_are_taken(ask, executor, database) -> None:
    """A renewal that waits for one request has locked none that pieces are taken of later."""
    answers = [ask("chat", messages=USER) for _ in range(2)]
    works = sorted((executor.next() for _ in answers), key=lambda work: work["request_id"])
    first, second = (work["request_id"] for work in works)
    executor.sends(piece(works[0], 1, text("lo")))  # its row is behind the other's in the table now
    absent = [f"cmpl_{number}" for number in range(500)]  # so many that they are not looked up one by one, in order
    with ThreadPoolExecutor(1) as threads:
        with database.begin() as session:
            assert session.get(CompletionRequest, first, with_for_update=True)
            renewed = threads.submit(lambda: executor.wants(room=0, held=(first, second, *absent)))
            until(lambda: waiting_for_locks(database))
            of_second = select(CompletionRequest.id).where(CompletionRequest.id == second)
            unlocked = session.scalar(of_second.with_for_update(skip_locked=True))
        assert renewed.result()["gone"] == absent
    for number, work in zip((2, 1), works, strict=True):
        executor.sends(piece(work, number, text("st", finish_reason="stop"), over=True))
    assert sorted(answer.result().choices[0].message.content for answer in answers) == ["lost", "st"]
    assert unlocked == second


def test_isolation_a_dedicated_executor_answers_its_tenant_alone(ask, training, new_tenant, server, tenant, database) -> None:
    dedicated = Executor(training(isolation="dedicated"))
    with asking(server, new_tenant().key) as theirs:
        other = theirs("chat", messages=USER)
        until(lambda: not dedicated.wants()["requests"])
        mine = ask("chat", messages=USER)
        work = dedicated.next()
        assert work["tenant_id"] == tenant.tenant_id
        assert dedicated.wants()["requests"] == []
        dedicated.sends(piece(work, 1, text("mine", finish_reason="stop"), over=True))
        assert mine.result().choices[0].message.content == "mine"
        shared = Executor(training(new_tenant()), "executor-2")
        work = shared.next()
        shared.sends(piece(work, 1, text("theirs", finish_reason="stop"), over=True))
        assert other.result().choices[0].message.content == "theirs"
    dedicated.placement.report(points(0, [1, 2, 3]), dedicated.placement.checkpoint({0: 3}))
    job = dedicated.placement.given.jobs[0].job_id
    secret = ask("chat", messages=USER, model=job)
    work = dedicated.next()
    assert work["checkpoint"]["file"]["step"] == 3
    dedicated.sends(piece(work, 1, text("secret", finish_reason="stop"), over=True))
    assert secret.result().choices[0].message.content == "secret"
    again = ask("chat", messages=USER, model=job)
    with database.begin() as session:
        until(lambda: session.scalar(select(CompletionRequest.id).where(CompletionRequest.state == "waiting")))
    assert shared.wants()["requests"] == [], "the adapter of a task that shares with nobody goes where its tenant is alone"
    dedicated.sends(piece(dedicated.next(), 1, text("again", finish_reason="stop"), over=True))
    assert again.result().choices[0].message.content == "again"


def test_tokens_of_other_placements_are_refused(executor, training) -> None:
    said = {"fence": 1, "executor": "executor-1", "room": 1, "held": [], "wait": 0}
    other = training()
    answer = executor.placement.node.call("POST", f"placements/{executor.placement.id}/completions", other.given.token, said)
    assert (answer.status_code, answer.json()["code"]) == (401, "placement_token_refused")
    executor.placement.node.lost(executor.placement)
    answer = executor.placement.call("POST", "completions", said)
    assert (answer.status_code, answer.json()["code"]) == (409, "fence_stale")


def test_an_executor_that_waits_is_woken_by_a_request(ask, executor, server) -> None:
    path = f"{server.url}/internal/v1/placements/{executor.placement.id}/completions"
    said = {"fence": executor.placement.given.fence, "executor": "executor-1", "room": 1, "held": [], "wait": 30}
    headers = {"Authorization": f"Bearer {executor.placement.given.token}"}
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(lambda: httpx.post(path, json=said, headers=headers, timeout=PATIENCE))
        answer = ask("chat", messages=USER)
        work = waiting.result().json()["requests"][0]
    executor.sends(piece(work, 1, text("yes", finish_reason="stop"), over=True))
    assert answer.result().choices[0].message.content == "yes"


def test_rows_are_removed_after_an_hour(ask, executor, database) -> None:
    answer = ask("chat", messages=USER)
    executor.sends(piece(executor.next(), 1, text("yes", finish_reason="stop"), over=True))
    answer.result()
    assert forget(database, Retention())["completion_requests"] == 0
    with database.begin() as session:
        session.execute(update(CompletionRequest).values(id=func.concat("cmpl_00", func.substr(CompletionRequest.id, 8))))
    assert forget(database, Retention())["completion_requests"] >= 1


def test_a_claim_outlasts_a_poll_and_the_asker_outlasts_a_tick() -> None:
    assert CLAIM_SECONDS > 5.0
    assert ASKER_SECONDS > 10 * following._TICK_SECONDS
