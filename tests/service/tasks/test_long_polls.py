"""GET /v1/tasks/{id}?wait=: answered when the task changes, by a real server, however many wait and even if nobody listened."""

import asyncio
import threading

import httpx
import psycopg
import pytest
from anyio import to_thread

from service.database.engine import CHANNEL, driver_url
from service.tasks.lifecycle import change_notices
from tests.service.live_server import BEFORE_A_POLL_ENDS, PATIENCE, until
from tests.service.sample_tasks import change


def test_a_task_that_has_changed_since_is_answered_at_once(http, tenant, database):
    task_id = tenant.task()["id"]
    change(database, task_id)
    answer = http.get(f"/v1/tasks/{task_id}", params={"wait": 60}, headers={"if-none-match": '"1"'}, timeout=BEFORE_A_POLL_ENDS)
    assert (answer.status_code, answer.headers["etag"]) == (200, '"2"')


def test_a_task_that_has_ended_is_answered_at_once(http, tenant):
    task_id = tenant.task()["id"]
    tenant.post(f"/v1/tasks/{task_id}/cancel")
    assert http.get(f"/v1/tasks/{task_id}", params={"wait": 60}, timeout=BEFORE_A_POLL_ENDS).json()["status"] == "cancelled"
    same = http.get(f"/v1/tasks/{task_id}", params={"wait": 60}, headers={"if-none-match": 'W/"2"'}, timeout=BEFORE_A_POLL_ENDS)
    assert (same.status_code, same.content) == (304, b"")


def test_without_a_change_the_wait_ends(http, tenant):
    task_id = tenant.task()["id"]
    assert http.get(f"/v1/tasks/{task_id}", params={"wait": 0.05}).status_code == 200
    assert http.get(f"/v1/tasks/{task_id}", params={"wait": 0.05}, headers={"if-none-match": '"1"'}).status_code == 304


@pytest.mark.parametrize("wait", ["-1", "61", "nan", "x"])
def test_a_wait_that_is_none(http, tenant, wait):
    response = http.get(f"/v1/tasks/{tenant.task()['id']}", params={"wait": wait})
    assert (response.status_code, response.json()["errors"][0]["field"]) == (422, "wait")


def test_a_foreign_task_is_not_waited_for(http, new_tenant):
    assert (
        http.get(f"/v1/tasks/{new_tenant().task()['id']}", params={"wait": 60}, timeout=BEFORE_A_POLL_ENDS).status_code == 404
    )


async def waiting(url: str, headers: dict[str, str], task_id: str, count: int, then) -> list[httpx.Response]:
    """Let `count` requests wait for the task, do `then` once all do, and return their answers."""
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=url, headers=headers, timeout=BEFORE_A_POLL_ENDS, limits=limits) as client:
        requests = [
            asyncio.ensure_future(client.get(f"/v1/tasks/{task_id}", params={"wait": 60}, headers={"if-none-match": '"1"'}))
            for _ in range(count)
        ]
        await asyncio.to_thread(then)
        return await asyncio.gather(*requests)


def test_more_may_wait_than_there_are_threads_and_connections(server, http, tenant):
    task_id, count = tenant.task()["id"], 80
    change_listener, pool = server.state.change_listener, server.state.db.engine.pool

    def change() -> None:
        until(lambda: len(change_listener._events.get(task_id, ())) == count and pool.checkedout() == 0)
        assert http.get(f"/v1/tasks/{task_id}").json()["status"] == "validating"  # others are served meanwhile
        http.post(f"/v1/tasks/{task_id}/cancel")

    answers = asyncio.run(waiting(server.url, tenant.headers, task_id, count, change))
    assert {answer.json()["status"] for answer in answers} == {"cancelled"}
    until(lambda: task_id not in change_listener._events)


def test_there_are_as_many_threads_as_connections(server):
    """A request that has a thread never waits for a connection that others hold."""

    async def threads() -> float:
        return to_thread.current_default_thread_limiter().total_tokens

    loop = server.state.change_listener._loop
    pools = {database.engine.pool.size() for database in (server.state.db, server.state.system)}
    assert pools == {asyncio.run_coroutine_threadsafe(threads(), loop).result(PATIENCE)}


def test_a_listener_that_lost_its_connection_misses_nothing(server, stack, http, tenant, settings, monkeypatch):
    task_id, lost = tenant.task()["id"], threading.Event()
    change_listener = server.state.change_listener
    clear = change_listener.listening.clear
    monkeypatch.setattr(change_listener.listening, "clear", lambda: (clear(), lost.set()))
    name = settings.database_url.rpartition("/")[2].partition("?")[0]

    def cut_then_change() -> None:
        until(lambda: task_id in change_listener._events)
        with stack.postgres.connect() as connection:
            cut = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s AND query LIKE 'LISTEN%%'"
            assert (True,) in connection.execute(cut, [name]).fetchall()
        assert lost.wait(PATIENCE)  # a second later it listens again
        http.post(f"/v1/tasks/{task_id}/cancel")  # nobody hears of this

    answers = asyncio.run(waiting(server.url, tenant.headers, task_id, 1, cut_then_change))
    assert answers[0].json()["status"] == "cancelled"
    assert change_listener.listening.wait(PATIENCE)


def test_all_that_a_plan_changes_are_told_in_few_notices(server, tenant, database, settings, monkeypatch):
    ids = [tenant.task()["id"] for _ in range(5)]
    monkeypatch.setattr(change_notices, "IDS_PER_NOTICE", 2)
    with psycopg.connect(driver_url(settings.database_url), autocommit=True) as listener:
        listener.execute(f"LISTEN {CHANNEL}")

        async def wait() -> list[str]:
            async with httpx.AsyncClient(base_url=server.url, headers=tenant.headers, timeout=BEFORE_A_POLL_ENDS) as client:
                asked = [client.get(f"/v1/tasks/{one}", params={"wait": 60}, headers={"if-none-match": '"1"'}) for one in ids]
                answers = asyncio.gather(*asked)
                await asyncio.to_thread(until, lambda: set(ids) <= set(server.state.change_listener._events))
                change(database, *ids)
                return [answer.headers["etag"] for answer in await answers]

        assert asyncio.run(wait()) == ['"2"'] * 5
        told = [notice.payload.split() for notice in listener.notifies(timeout=PATIENCE, stop_after=3)]
    assert [len(names) for names in told] == [2, 2, 1]
    assert [name for names in told for name in names] == ids
