"""A task's event stream: numbered without gaps, read again from any number on, by many at once, through cuts and restarts."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from sqlalchemy import select

from service.tasks.lifecycle.change_notices import bump_version_and_notify
from service.tasks.lifecycle.event_log import EventKind, record
from service.tasks.models import Task, TaskEvent
from tests.service.fleet.scripted import completed, exited, moved, points
from tests.service.live_server import PATIENCE, Server, live, until

ENDED = ("succeeded", "failed", "cancelled")


@pytest.fixture
def tell(database):
    """Record events of a task, each in a transaction of its own, as several writers would."""

    def act(task_id: str, count: int) -> None:
        for _ in range(count):
            with database.begin() as session:
                task = session.scalars(select(Task).where(Task.id == task_id).with_for_update()).one()
                record(session, task, EventKind.BASE, {"val_loss": 1.0})
                bump_version_and_notify(session, task)

    return act


def parse(text: str) -> list[dict[str, Any]]:
    """Whole events of a stream, comments and reconnection times left out."""
    found = []
    for block in text.split("\n\n"):
        lines = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith((":", "retry")))
        if "data" in lines:
            event = json.loads(lines["data"])
            assert (int(lines["id"]), lines["event"]) == (event["number"], event["type"])
            found.append(event)
    return found


async def follow(client: httpx.AsyncClient, task_id: str, after: int = 0) -> AsyncIterator[dict[str, Any]]:
    """Events as they come in, from one connection."""
    headers = {"last-event-id": str(after)} if after else {}
    async with client.stream("GET", f"/v1/tasks/{task_id}/events", headers=headers) as response:
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        rest = ""
        async for text in response.aiter_text():
            *whole, rest = (rest + text).split("\n\n")
            for event in parse("\n\n".join(whole) + "\n\n"):
                yield event


def said(tenant, task_id: str, **how: Any) -> list[dict[str, Any]]:
    """All events of a task that has ended."""
    response = tenant.get(f"/v1/tasks/{task_id}/events", **how)
    assert response.status_code == 200, response.text
    return parse(response.text)


def test_a_tasks_life_in_events(tenant, new_node, plan):
    node = new_node()
    task_id = tenant.task()["id"]
    plan()
    placement = node.take(task_id)
    chosen = {"recompute": True, "reason": "activations are computed again in backward: a sequence of 9 tokens"}
    placement.report(placement.attached(), {"kind": "activations_chosen", **chosen})
    placement.report({"kind": "base_evaluated", "val_loss": 3.0}, moved(0, "warmup"), moved(1, "warmup"))
    placement.report(points(0, [1, 2]), points(1, [1], [None]), points(0, [3]), points(0, [2], [1.5], "val_loss"))
    placement.report(points(1, [2]), exited(1, 2, "diverging"), placement.adapter(0, 1.25), completed(0))
    events = said(tenant, task_id)
    assert [event["number"] for event in events] == list(range(1, len(events) + 1))
    told = [(event["type"], event["data"]) for event in events]
    assert [data["status"] for kind, data in told if kind == "status"] == ["validating", "queued", "running", "succeeded"]
    assert told.index(("activations", chosen)) < told.index(("base", {"val_loss": 3.0}))
    curves = [data["curves"] for kind, data in told if kind == "curves"]
    assert curves[0] == [
        {"job": 0, "series": "train_loss", "from_step": 1, "to_step": 3, "last": 2.0 - 3 / 100},
        {"job": 1, "series": "train_loss", "from_step": 1, "to_step": 1, "last": None},
        {"job": 0, "series": "val_loss", "from_step": 2, "to_step": 2, "last": 1.5},
    ]
    last = [(kind, data.get("job"), data.get("status")) for kind, data in told[-5:]]
    ends = [("curves", None, None), ("job", 1, "exited"), ("adapter", 0, None), ("job", 0, "completed")]
    assert last == [*ends, ("status", None, "succeeded")]
    assert told[-4][1]["exit_reason"] == "diverging"
    assert told[-4][1]["exit_evidence"] == tenant.get(f"/v1/tasks/{task_id}/jobs").json()["data"][1]["exit"]["evidence"] != {}
    assert told[-1][1]["winner_job_id"] == placement.given.jobs[0].job_id
    assert tenant.get(f"/v1/tasks/{task_id}").json()["placement"]["device_type"] == "cpu"


def test_an_adapter_that_is_a_mean_says_of_which_steps(tenant, new_node, plan):
    node = new_node()
    task_id = tenant.task()["id"]
    plan()
    placement = node.take(task_id)
    placement.report(placement.attached(), moved(0, "warmup"), moved(1, "warmup"))
    mean = placement.adapter(0, 1.25)
    mean["manifest"]["averaged_steps"] = [5, 6, 8]
    placement.report(mean)
    placement.report(completed(0), placement.adapter(1, 1.5), completed(1))
    told = [event["data"] for event in said(tenant, task_id) if event["type"] == "adapter" or "best_step" in event["data"]]
    assert [data.get("averaged_steps") for data in told] == [[5, 6, 8], [5, 6, 8], None, None]
    jobs = tenant.get(f"/v1/tasks/{task_id}/jobs").json()["data"]
    assert [job["averaged_steps"] for job in jobs] == [[5, 6, 8], []]
    winner = tenant.get(f"/v1/tasks/{task_id}").json()["winner"]
    assert (winner["index"], winner["averaged_steps"]) == (0, [5, 6, 8])
    assert tenant.delete(f"/v1/adapters/{jobs[1]['adapter_id']}").status_code == 204
    after = tenant.get(f"/v1/tasks/{task_id}/jobs").json()["data"]
    assert after == [jobs[0], jobs[1] | {"adapter_id": None}]


def test_a_rewind_says_what_does_not_count_any_more(tenant, new_node, plan):
    node = new_node()
    task_id = tenant.task()["id"]
    plan()
    placement = node.take(task_id)
    placement.report(placement.attached(), moved(0, "warmup"), moved(1, "warmup"), points(0, [1, 2]), points(1, [1]))
    placement.report(placement.checkpoint({0: 2}), points(0, [3]))
    assert node.lost(placement).status_code == 204
    tenant.post(f"/v1/tasks/{task_id}/cancel")
    events = said(tenant, task_id)
    rewinds = [event["data"] for event in events if event["type"] == "rewind"]
    assert rewinds == [{"job": 0, "step": 2, "status": "warmup"}, {"job": 1, "step": -1, "status": "pending"}]
    back = [event["data"] for event in events if event["type"] == "status"]
    assert {"status": "queued", "reason": "executor_lost"} in back


def test_from_any_number_on_and_then_no_more(tenant, tell):
    task_id = tenant.task()["id"]
    tell(task_id, 5)
    tenant.post(f"/v1/tasks/{task_id}/cancel")
    events = said(tenant, task_id)
    assert said(tenant, task_id, headers={"last-event-id": "3"}) == events[3:] == said(tenant, task_id, params={"after": 3})
    assert tenant.get(f"/v1/tasks/{task_id}/events", headers={"last-event-id": str(len(events))}).status_code == 204
    assert tenant.get(f"/v1/tasks/{task_id}/events", headers={"last-event-id": "x"}).status_code == 422
    assert tenant.get(f"/v1/tasks/{task_id}/events", headers={"last-event-id": "99999"}).status_code == 204


def test_more_events_than_one_read_takes(tenant, tell, monkeypatch):
    monkeypatch.setattr("service.tasks.polling.event_stream._BATCH", 3)
    task_id = tenant.task()["id"]
    tell(task_id, 7)
    tenant.post(f"/v1/tasks/{task_id}/cancel")
    assert [event["number"] for event in said(tenant, task_id)] == list(range(1, 11))[: len(said(tenant, task_id))]
    assert len(said(tenant, task_id)) >= 9


def test_writers_at_once_leave_no_gap_and_readers_miss_nothing(server: Server, tenant, tell):
    """Readers that stay, and readers that are cut again and again, see every number once and in order."""
    task_id = tenant.task()["id"]

    def write() -> None:
        writers = [threading.Thread(target=tell, args=(task_id, 15)) for _ in range(3)]
        for writer in writers:
            writer.start()
        for writer in writers:
            writer.join()
        tenant.post(f"/v1/tasks/{task_id}/cancel")

    async def stays(client: httpx.AsyncClient) -> list[int]:
        return [event["number"] async for event in follow(client, task_id)]

    async def is_cut(client: httpx.AsyncClient) -> list[int]:
        seen: list[int] = []
        while True:
            async for event in follow(client, task_id, seen[-1] if seen else 0):
                seen.append(event["number"])
                if event["data"].get("status") in ENDED:
                    return seen
                if len(seen) % 4 == 0:
                    break  # the connection is closed in the middle of things

    async def everybody() -> list[list[int]]:
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(base_url=server.url, headers=tenant.headers, timeout=PATIENCE, limits=limits) as client:
            readers = [asyncio.ensure_future(read(client)) for read in (stays, is_cut) for _ in range(20)]
            watching, pool = server.state.change_listener._events, server.state.db.engine.pool
            await asyncio.to_thread(until, lambda: len(watching.get(task_id, ())) == len(readers))
            await asyncio.to_thread(until, lambda: pool.checkedout() == 0)  # streams hold no connections
            await asyncio.to_thread(write)
            return await asyncio.gather(*readers)

    seen = asyncio.run(everybody())
    assert seen[0] == list(range(1, len(seen[0]) + 1))
    assert len(seen[0]) >= 47
    assert all(one == seen[0] for one in seen)
    until(lambda: task_id not in server.state.change_listener._events)


def test_a_restart_loses_nothing_and_open_streams_do_not_hold_it_up(settings, tenant, tell):
    task_id = tenant.task()["id"]
    seen: list[int] = []

    async def read(url: str, done) -> None:
        async with httpx.AsyncClient(base_url=url, headers=tenant.headers, timeout=PATIENCE) as client:
            async for event in follow(client, task_id, seen[-1] if seen else 0):
                seen.append(event["number"])
                if done(event):
                    return

    def reading(url: str, done=lambda event: False) -> threading.Thread:
        thread = threading.Thread(target=lambda: asyncio.run(read(url, done)))
        thread.start()
        return thread

    with live(settings) as first:
        stream = reading(first.url)
        until(lambda: seen)
        tell(task_id, 3)
        until(lambda: len(seen) >= 4)
    stream.join(PATIENCE)  # the server has stopped, though the stream would have lasted
    assert not stream.is_alive()
    tell(task_id, 4)  # while no server runs
    with live(settings) as second:
        stream = reading(second.url)
        until(lambda: len(seen) >= 8)
        tenant.post(f"/v1/tasks/{task_id}/cancel")
        stream.join(PATIENCE)
    assert seen == list(range(1, len(seen) + 1))


def test_another_tenants_events_are_not_there(tenant, new_tenant, database):
    task_id = new_tenant().task()["id"]
    assert tenant.get(f"/v1/tasks/{task_id}/events").status_code == 404
    with database.begin() as session:
        assert session.scalars(select(TaskEvent.kind).where(TaskEvent.task_id == task_id)).all() == ["status"]
