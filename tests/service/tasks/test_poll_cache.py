"""GET /v1/tasks/{id}, asked again and again: reads are shared, answers kept, and none is older than its question."""

import asyncio
from typing import Any

import httpx
import pytest
from sqlalchemy import text

from service.database.async_reader import AsyncReader
from service.database.engine import Database
from service.database.prepared_statements import PreparedStatement
from service.tasks.lifecycle.change_notices import bump_version_and_notify
from service.tasks.models import Task
from service.tenants.request_coalescer import RequestCoalescer
from tests.service.live_server import PATIENCE, until
from tests.service.sample_tasks import adapter, change, jobs_of, placement


class Reads(list[list[Any]]):
    """What each read was for: tasks' ids, or pairs of a tenant and an id."""

    missing = 0  # askers that the first read is held for: they share the reads after it

    def expect(self, askers: int) -> None:
        self.clear()
        self.missing = askers


def counted(coalescer: RequestCoalescer[Any, Any, Any], monkeypatch: pytest.MonkeyPatch, askers: int = 0) -> Reads:
    """What each read is for that it begins from now on."""
    reads, act, submit = Reads(), coalescer._act, coalescer.submit
    reads.expect(askers)

    async def read(*given: Any) -> Any:
        reads.append(given[-1])
        async with asyncio.timeout(PATIENCE):
            while reads.missing > 0:
                await asyncio.sleep(0.005)
        return await act(*given)

    async def submitted(*given: Any) -> Any:
        reads.missing -= 1
        return await submit(*given)

    monkeypatch.setattr(coalescer, "_act", read)
    monkeypatch.setattr(coalescer, "submit", submitted)
    return reads


def test_those_who_ask_at_once_share_reads(server, tenant, monkeypatch):
    """Never one that was begun before they asked: what a client did, its next question sees."""
    task_id = tenant.task()["id"]
    httpx.get(f"{server.url}/v1/tasks/{task_id}", headers=tenant.headers, timeout=PATIENCE)  # how it looks is kept from here on
    reads = counted(server.state.polls._versions, monkeypatch, askers=60)
    headers = tenant.headers | {"if-none-match": '"1"'}

    async def ask() -> list[int]:
        async with httpx.AsyncClient(base_url=server.url, headers=headers, timeout=PATIENCE) as client:
            answers = await asyncio.gather(*(client.get(f"/v1/tasks/{task_id}") for _ in range(60)))
        return [answer.status_code for answer in answers]

    assert asyncio.run(ask()) == [304] * 60
    assert 0 < len(reads) < 60


def test_polls_of_all_tenants_share_reads_and_each_sees_its_own(server, new_tenant, monkeypatch):
    """A tenant that asks for another's task gets a 404, in the same read that answers its owner."""
    tenants = [new_tenant() for _ in range(8)]
    tasks = [tenant.task()["id"] for tenant in tenants]
    asked = [(tenant, task_id) for tenant in tenants for task_id in tasks]

    async def ask(known: dict[str, str]) -> list[httpx.Response]:
        limits = httpx.Limits(max_connections=64)
        async with httpx.AsyncClient(base_url=server.url, timeout=PATIENCE, limits=limits) as client:
            polls = (client.get(f"/v1/tasks/{task_id}", headers=tenant.headers | known) for tenant, task_id in asked)
            return await asyncio.gather(*polls)

    asyncio.run(ask({}))  # their answers are kept from here on
    reads = counted(server.state.polls._versions, monkeypatch)
    for known, found in (({}, 200), ({"if-none-match": '"1"'}, 304)):
        reads.expect(len(tenants))  # a version is asked for the owner's polls alone, who knows how the task looks
        answers = asyncio.run(ask(known))
        own = [tasks.index(task_id) == tenants.index(tenant) for tenant, task_id in asked]
        assert [answer.status_code for answer in answers] == [found if mine else 404 for mine in own]
        shown = [answer.json()["id"] for answer in answers if answer.status_code == 200]
        assert shown == (tasks if found == 200 else [])
        assert max(len({tenant_id for tenant_id, _ in read}) for read in reads) > 1, "tenants did not share a read"
        assert sum(map(len, reads)) <= len(asked)


def test_row_level_security_holds_within_a_read_of_several_tenants(settings, database, new_tenant):
    """For rows of which the statement's own filter is taken out, too; and nothing of a tenant remains named after it."""
    one, other = new_tenant(), new_tenant()
    mine, theirs = one.task()["id"], other.task()["id"]
    with database.begin() as session:
        source = session.scalars(text("SELECT pg_get_functiondef('task_versions'::regproc)")).one()

    async def look(name: str) -> tuple[list[Any], list[Any]]:
        reader = AsyncReader(settings.app_database_url)
        try:
            asked = {"tenants": [one.tenant_id, other.tenant_id, one.tenant_id], "ids": [mine, mine, theirs], "plans": [0] * 3}
            statement = PreparedStatement(text(f"SELECT tenant_id, id FROM {name}(:tenants, :ids, CAST(:plans AS bigint[]))"))
            found = await (await reader.look_alone(statement, asked)).fetchall()
            after = PreparedStatement(text("SELECT id FROM tasks"))
            return found, await (await reader.look_alone(after, {})).fetchall()
        finally:
            await reader.close()

    unfiltered = source.replace("task_versions", "task_versions_unfiltered")
    for condition in (" AND t.tenant_id = asked.tenant", " WHERE q.tenant_id = asked.tenant"):
        assert condition in unfiltered
        unfiltered = unfiltered.replace(condition, "")
    with Database(settings.owner_database_url, 1).begin() as session:
        session.execute(text(unfiltered.replace(":", r"\:")))
    for name in ("task_versions", "task_versions_unfiltered"):
        assert asyncio.run(look(name)) == ([(one.tenant_id, mine)], [])


def test_tasks_that_nobody_has_asked_for_yet_are_loaded_together(server, tenant, monkeypatch):
    tasks = [tenant.task()["id"] for _ in range(4)]
    asked = tasks * 15
    loads = counted(server.state.polls._loads, monkeypatch, askers=len(asked))

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
    assert (versions, loads) == ([[(tenant.tenant_id, task_id)]], [[task_id]])
    with database.begin() as session:
        session.get_one(Task, task_id).version += 1  # as if the notice were still on its way
    assert [http.get(f"/v1/tasks/{task_id}", headers=known).headers["etag"] for _ in range(2)] == ['"3"'] * 2
    assert (len(versions), len(loads)) == (3, 2)


def test_what_a_plan_changes_is_loaded_with_the_first_that_is_asked_for(server, tenant, http, database, monkeypatch):
    ids, polls = [tenant.task()["id"] for _ in range(4)], server.state.polls
    monkeypatch.setattr("service.tasks.polling.poll_cache._MOST_LOADED", 3)
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
    look, change_listener = polls._load_line.look, server.state.change_listener

    async def looked(*given: Any) -> Any:
        found, heard = await look(*given), change_listener.heard
        monkeypatch.setattr(polls._load_line, "look", look)
        await asyncio.to_thread(change, database, task_id)
        while change_listener.heard == heard:
            await asyncio.sleep(0.01)
        return found

    monkeypatch.setattr(polls._load_line, "look", looked)
    assert [http.get(f"/v1/tasks/{task_id}").headers["etag"] for _ in range(3)] == ['"1"', '"2"', '"2"']


def test_an_id_that_cannot_be_asked_for_spoils_no_other_poll(server, tenant, http, monkeypatch):
    task_id, polls = tenant.task()["id"], server.state.polls
    reads = counted(polls._versions, monkeypatch), counted(polls._loads, monkeypatch)
    for id in ("a%00b", "a" * 60_000):
        for known in ({}, {"wait": 0.05}):
            assert http.get(f"/v1/tasks/{id}", params=known).status_code == 404
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
def test_a_poll_shows_what_a_list_does(http, server, tenant, database, monkeypatch, slice_seconds):
    """The event loop reads tasks by statements of its own, a list through the ORM."""
    monkeypatch.setattr("service.tasks.polling.poll_cache._SLICE_SECONDS", slice_seconds)
    statuses = ("queued", "running", "succeeded", "paused")
    ids = [tenant.task(search_space={"learning_rate": [1e-4, 2e-4, 3e-4]})["id"] for _ in statuses]
    with database.begin() as session:
        for task_id, status in zip(ids, statuses, strict=True):
            task, jobs = session.get_one(Task, task_id), jobs_of(session, task_id)
            task.status, task.train_rows, task.waiting = status, 37, {"reason": "capacity"} if status == "queued" else None
            for job, step, stands in zip(jobs, (3, 20, 30), ("training", "exited", "completed"), strict=True):
                job.status, job.step, job.total_steps = stands, step, 30
            placement(session, task_id, tokens=100, ended=True)
            runs = status == "running"
            placement(session, task_id, tokens=700, devices=2, ended=not runs, train_seconds=8.0 if runs else 0.0)
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
    assert [task["placement"] and task["placement"]["tokens_per_second"] for task in polled] == [None, 87.5, None, None]
    assert polled[0]["samples"] == {"trained": 3 * 4 + (37 * 2) + (37 * 3), "full": 3 * 37 * 3, "saved_fraction": 37 / 333}


def test_what_a_poller_sees_is_never_older_than_its_question(http, tenant, database):
    """Though how the task looks is kept: every change shows in the very next answer."""
    task_id = tenant.task()["id"]
    for number in range(2, 8):
        with database.begin() as session:
            task = session.get_one(Task, task_id)
            task.name = f"name {number}"
            bump_version_and_notify(session, task)
        seen = [http.get(f"/v1/tasks/{task_id}") for _ in range(3)]
        assert {(answer.json()["name"], answer.headers["etag"]) for answer in seen} == {(f"name {number}", f'"{number}"')}


def test_what_is_kept_for_one_tenant_is_not_there_for_another(http, server, tenant, new_tenant):
    task_id = tenant.task()["id"]
    assert [http.get(f"/v1/tasks/{task_id}").status_code for _ in range(2)] == [200, 200]
    for known in ({}, {"if-none-match": '"1"'}):
        headers = new_tenant().headers | known
        assert httpx.get(f"{server.url}/v1/tasks/{task_id}", headers=headers, timeout=PATIENCE).status_code == 404


def test_a_deleted_task_is_gone_for_those_who_knew_it(http, tenant):
    task_id = tenant.task()["id"]
    http.post(f"/v1/tasks/{task_id}/cancel")
    etag = http.get(f"/v1/tasks/{task_id}").headers["etag"]
    assert http.delete(f"/v1/tasks/{task_id}").status_code == 204
    for known in ({}, {"if-none-match": etag}, {"if-none-match": '"3"'}):
        assert http.get(f"/v1/tasks/{task_id}", headers=known).status_code == 404
