"""GET /v1/tasks/{id}?wait=: answered when the task changes, by a real server, however many wait and even if nobody listened."""

import asyncio
from collections.abc import Iterator
from typing import Any

import httpx
import psycopg
import pytest
from anyio import to_thread

from service.db import driver_url
from service.tasks import watch
from service.tasks.models import Task
from service.tasks.together import Together
from service.tasks.watch import touch
from tests.service.live import PATIENCE, until
from tests.service.made import adapter, jobs_of, placement


@pytest.fixture
def http(server, tenant) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, headers=tenant.headers, timeout=PATIENCE) as made:
        yield made


def change(database, *task_ids: str) -> None:
    with database.begin() as session:
        touch(session, *(session.get_one(Task, task_id) for task_id in task_ids))


def test_a_task_that_has_changed_since_is_answered_at_once(http, tenant, database):
    task_id = tenant.task()["id"]
    change(database, task_id)
    answer = http.get(f"/v1/tasks/{task_id}", params={"wait": 60}, headers={"if-none-match": '"1"'})
    assert (answer.status_code, answer.headers["etag"]) == (200, '"2"')


def test_a_task_that_has_ended_is_answered_at_once(http, tenant):
    task_id = tenant.task()["id"]
    tenant.post(f"/v1/tasks/{task_id}/cancel")
    assert http.get(f"/v1/tasks/{task_id}", params={"wait": 60}).json()["status"] == "cancelled"
    same = http.get(f"/v1/tasks/{task_id}", params={"wait": 60}, headers={"if-none-match": 'W/"2"'})
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
    assert http.get(f"/v1/tasks/{new_tenant().task()['id']}", params={"wait": 60}).status_code == 404


async def waiting(url: str, headers: dict[str, str], task_id: str, count: int, then) -> list[httpx.Response]:
    """Let `count` requests wait for the task, do `then` once all do, and return their answers."""
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=url, headers=headers, timeout=PATIENCE, limits=limits) as client:
        requests = [
            asyncio.ensure_future(client.get(f"/v1/tasks/{task_id}", params={"wait": 60}, headers={"if-none-match": '"1"'}))
            for _ in range(count)
        ]
        await asyncio.to_thread(then)
        return await asyncio.gather(*requests)


def test_more_may_wait_than_there_are_threads_and_connections(server, http, tenant):
    task_id, count = tenant.task()["id"], 80
    watcher, pool = server.state.watcher, server.state.db.engine.pool

    def change() -> None:
        until(lambda: len(watcher._events.get(task_id, ())) == count and pool.checkedout() == 0)
        assert http.get(f"/v1/tasks/{task_id}").json()["status"] == "validating"  # others are served meanwhile
        http.post(f"/v1/tasks/{task_id}/cancel")

    answers = asyncio.run(waiting(server.url, tenant.headers, task_id, count, change))
    assert {answer.json()["status"] for answer in answers} == {"cancelled"}
    until(lambda: task_id not in watcher._events)


def test_there_are_as_many_threads_as_connections(server):
    """A request that has a thread never waits for a connection that others hold."""

    async def threads() -> float:
        return to_thread.current_default_thread_limiter().total_tokens

    loop = server.state.watcher._loop
    pools = {database.engine.pool.size() for database in (server.state.db, server.state.system)}
    assert pools == {asyncio.run_coroutine_threadsafe(threads(), loop).result(PATIENCE)}


def test_a_listener_that_lost_its_connection_misses_nothing(server, stack, http, tenant, settings):
    task_id = tenant.task()["id"]
    watcher = server.state.watcher
    name = settings.database_url.rpartition("/")[2].partition("?")[0]

    def cut_then_change() -> None:
        until(lambda: task_id in watcher._events)
        with stack.postgres.connect() as connection:
            cut = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s AND query LIKE 'LISTEN%%'"
            assert (True,) in connection.execute(cut, [name]).fetchall()
        until(lambda: not watcher.listening.is_set())
        http.post(f"/v1/tasks/{task_id}/cancel")  # nobody hears of this

    answers = asyncio.run(waiting(server.url, tenant.headers, task_id, 1, cut_then_change))
    assert answers[0].json()["status"] == "cancelled"
    assert watcher.listening.wait(PATIENCE)


def test_all_that_a_plan_changes_are_told_in_few_notices(server, tenant, database, settings, monkeypatch):
    ids = [tenant.task()["id"] for _ in range(5)]
    monkeypatch.setattr(watch, "TOLD_TOGETHER", 2)
    with psycopg.connect(driver_url(settings.database_url), autocommit=True) as listener:
        listener.execute(f"LISTEN {watch.CHANNEL}")

        async def wait() -> list[str]:
            async with httpx.AsyncClient(base_url=server.url, headers=tenant.headers, timeout=PATIENCE) as client:
                asked = [client.get(f"/v1/tasks/{one}", params={"wait": 60}, headers={"if-none-match": '"1"'}) for one in ids]
                answers = asyncio.gather(*asked)
                await asyncio.to_thread(until, lambda: set(ids) <= set(server.state.watcher._events))
                change(database, *ids)
                return [answer.headers["etag"] for answer in await answers]

        assert asyncio.run(wait()) == ['"2"'] * 5
        told = [notice.payload.split() for notice in listener.notifies(timeout=PATIENCE, stop_after=3)]
    assert [len(names) for names in told] == [2, 2, 1]
    assert [name for names in told for name in names] == ids


def counted(together: Together[Any, Any], monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The ids of each read that it begins from now on."""
    reads: list[list[str]] = []
    act = together._act
    monkeypatch.setattr(together, "_act", lambda *given: reads.append(given[-1]) or act(*given))
    return reads


def test_those_who_ask_at_once_share_reads(server, tenant, monkeypatch):
    """Never one that was begun before they asked: what a client did, its next question sees."""
    task_id, reads = tenant.task()["id"], counted(server.state.polls._versions, monkeypatch)
    httpx.get(f"{server.url}/v1/tasks/{task_id}", headers=tenant.headers)  # how it looks is kept from here on
    headers = tenant.headers | {"if-none-match": '"1"'}

    async def ask() -> list[int]:
        async with httpx.AsyncClient(base_url=server.url, headers=headers, timeout=PATIENCE) as client:
            answers = await asyncio.gather(*(client.get(f"/v1/tasks/{task_id}") for _ in range(60)))
        return [answer.status_code for answer in answers]

    assert asyncio.run(ask()) == [304] * 60
    assert 0 < len(reads) < 60


def test_tasks_that_nobody_has_asked_for_yet_are_loaded_together(server, tenant, monkeypatch):
    tasks, loads = [tenant.task()["id"] for _ in range(4)], counted(server.state.polls._loads, monkeypatch)
    asked = tasks * 15

    async def ask() -> list[str]:
        async with httpx.AsyncClient(base_url=server.url, headers=tenant.headers, timeout=PATIENCE) as client:
            answers = await asyncio.gather(*(client.get(f"/v1/tasks/{task_id}") for task_id in asked))
        return [answer.json()["id"] for answer in answers]

    assert asyncio.run(ask()) == asked
    assert 0 < len(loads) < len(asked) / 4
    assert set().union(*loads) == set(tasks)


def test_of_a_task_that_is_known_to_have_changed_no_version_is_asked(server, tenant, http, database, monkeypatch):
    """It is loaded at once; with nobody listening, its version tells."""
    task_id, polls = tenant.task()["id"], server.state.polls
    assert http.get(f"/v1/tasks/{task_id}").headers["etag"] == '"1"'
    versions, loads = counted(polls._versions, monkeypatch), counted(polls._loads, monkeypatch)
    change(database, task_id)
    until(lambda: task_id not in polls._kept)
    known = {"if-none-match": '"1"'}
    assert [http.get(f"/v1/tasks/{task_id}", headers=known).headers["etag"] for _ in range(2)] == ['"2"'] * 2
    assert (versions, loads) == ([[task_id]], [[task_id]])
    with database.begin() as session:
        session.get_one(Task, task_id).version += 1  # as if the notice were still on its way
    assert [http.get(f"/v1/tasks/{task_id}", headers=known).headers["etag"] for _ in range(2)] == ['"3"'] * 2
    assert (len(versions), len(loads)) == (3, 2)


def test_what_a_plan_changes_is_loaded_with_the_first_that_is_asked_for(server, tenant, http, database, monkeypatch):
    ids, polls = [tenant.task()["id"] for _ in range(4)], server.state.polls
    monkeypatch.setattr("service.tasks.polls._MOST_LOADED", 3)
    for task_id in ids:
        http.get(f"/v1/tasks/{task_id}")
    loads = counted(polls._loads, monkeypatch)
    change(database, *ids)
    until(lambda: not set(ids) & set(polls._kept))
    assert http.get(f"/v1/tasks/{ids[0]}").headers["etag"] == '"2"'
    assert loads == [[ids[0]]]
    assert ids[0] in polls._kept
    others = [task_id for task_id in ids if task_id in polls._kept]
    assert len(others) == 3, "no more than one read has room for"
    assert [http.get(f"/v1/tasks/{task_id}").headers["etag"] for task_id in others] == ['"2"'] * 3
    assert len(loads) == 1
    assert [http.get(f"/v1/tasks/{task_id}").headers["etag"] for task_id in ids] == ['"2"'] * 4
    assert len(loads) == 2


def test_a_change_that_comes_while_a_task_is_read_shows_in_the_next_answer(server, tenant, http, database, monkeypatch):
    task_id, polls = tenant.task()["id"], server.state.polls
    look, watcher = polls._load_line.look, server.state.watcher

    async def looked(*given: Any) -> Any:
        found, heard = await look(*given), watcher.heard
        monkeypatch.setattr(polls._load_line, "look", look)
        await asyncio.to_thread(change, database, task_id)
        while watcher.heard == heard:
            await asyncio.sleep(0.01)
        return found

    monkeypatch.setattr(polls._load_line, "look", looked)
    assert [http.get(f"/v1/tasks/{task_id}").headers["etag"] for _ in range(3)] == ['"1"', '"2"', '"2"']


def test_an_id_that_cannot_be_asked_for_spoils_no_other_poll(server, tenant, http, monkeypatch):
    task_id, polls = tenant.task()["id"], server.state.polls
    reads = counted(polls._versions, monkeypatch), counted(polls._loads, monkeypatch)
    for known in ({}, {"wait": 0.05}):
        assert http.get("/v1/tasks/a%00b", params=known).status_code == 404
    assert reads == ([], [])
    assert http.get(f"/v1/tasks/{task_id}").status_code == 200


def test_what_nobody_polls_any_more_is_loaded_no_more(server, tenant, http, database):
    asked, left, polls = tenant.task()["id"], tenant.task()["id"], server.state.polls
    for task_id in (asked, left):
        http.get(f"/v1/tasks/{task_id}")
    kept = []
    for _ in range(2):
        change(database, asked, left)
        until(lambda: not {asked, left} & set(polls._kept))
        http.get(f"/v1/tasks/{asked}")
        kept.append({asked, left} & set(polls._kept))
    assert kept == [{asked, left}, {asked}]


@pytest.mark.parametrize("slice_seconds", [0.0, 60.0])
def test_a_poll_shows_what_a_list_does(http, server, tenant, database, stack, monkeypatch, slice_seconds):
    """The event loop reads tasks by statements of its own, a list through the ORM."""
    monkeypatch.setattr("service.tasks.polls._SLICE_SECONDS", slice_seconds)
    statuses = ("queued", "running", "succeeded", "paused")
    ids = [tenant.task(search_space={"learning_rate": [1e-4, 2e-4, 3e-4]})["id"] for _ in statuses]
    with database.begin() as session:
        for task_id, status in zip(ids, statuses, strict=True):
            task, jobs = session.get_one(Task, task_id), jobs_of(session, task_id)
            task.status, task.train_rows, task.waiting = status, 37, {"reason": "capacity"} if status == "queued" else None
            for job, step, stands in zip(jobs, (3, 20, 30), ("training", "exited", "completed"), strict=True):
                job.status, job.step, job.total_steps = stands, step, 30
            placement(session, task_id, tokens=100, ended=True)
            placement(session, task_id, tokens=700, devices=2, ended=status != "running")
            session.flush()
            if status == "succeeded":
                adapter(session, server.state.storage, jobs[2], {"adapter_model.safetensors": b"x"})
                task.winner_job_id = jobs[2].id
    listed = {task["id"]: task for task in http.get("/v1/tasks").json()["data"]}

    async def ask() -> list[Any]:
        async with httpx.AsyncClient(base_url=server.url, headers=tenant.headers, timeout=PATIENCE) as client:
            return [answer.json() for answer in await asyncio.gather(*(client.get(f"/v1/tasks/{one}") for one in ids))]

    polled = asyncio.run(ask())
    assert polled == [listed[task_id] for task_id in ids]
    assert [task["winner"] is not None for task in polled] == [status == "succeeded" for status in statuses]
    assert [task["placement"] and task["placement"]["gpus"] for task in polled] == [None, 2, 2, None]
    assert polled[0]["samples"] == {"trained": 3 * 4 + (37 * 2) + (37 * 3), "full": 3 * 37 * 3, "saved_fraction": 37 / 333}


def test_what_a_poller_sees_is_never_older_than_its_question(http, tenant, database):
    """Though how the task looks is kept: every change shows in the very next answer."""
    task_id = tenant.task()["id"]
    for number in range(2, 8):
        with database.begin() as session:
            task = session.get_one(Task, task_id)
            task.name = f"name {number}"
            touch(session, task)
        seen = [http.get(f"/v1/tasks/{task_id}") for _ in range(3)]
        assert {(answer.json()["name"], answer.headers["etag"]) for answer in seen} == {(f"name {number}", f'"{number}"')}


def test_what_is_kept_for_one_tenant_is_not_there_for_another(http, server, tenant, new_tenant):
    task_id = tenant.task()["id"]
    assert [http.get(f"/v1/tasks/{task_id}").status_code for _ in range(2)] == [200, 200]
    for known in ({}, {"if-none-match": '"1"'}):
        assert httpx.get(f"{server.url}/v1/tasks/{task_id}", headers=new_tenant().headers | known).status_code == 404


def test_a_deleted_task_is_gone_for_those_who_knew_it(http, tenant):
    task_id = tenant.task()["id"]
    http.post(f"/v1/tasks/{task_id}/cancel")
    etag = http.get(f"/v1/tasks/{task_id}").headers["etag"]
    assert http.delete(f"/v1/tasks/{task_id}").status_code == 204
    for known in ({}, {"if-none-match": etag}, {"if-none-match": '"3"'}):
        assert http.get(f"/v1/tasks/{task_id}", headers=known).status_code == 404
