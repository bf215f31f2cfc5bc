"""`AsyncClient`: the same calls as `Client`, carried out by asyncio, against a real socket that misbehaves on purpose."""

import asyncio
import json
import time
from collections.abc import Callable

import httpx
import pytest
from motet import AsyncClient, Client, TaskNotDone, Unreachable
from motet.api.calls import Admin, Call, Calls, Paginated
from motet.api.errors import DownloadDamaged
from motet.api.operations import tasks

from tests.client.scripted_server import ADAPTER, FILE, PAGE, TASK, Script, body

Served = Callable[[Script], Client]


def beside(sync: Client) -> AsyncClient:
    return AsyncClient(sync.api_url, "mk_1")


def test_both_clients_have_the_same_calls_each_with_its_words() -> None:
    async def attributes() -> dict[str, type]:
        async with AsyncClient("http://127.0.0.1:9", "mk_1", "mk_2") as client:
            return {name: type(value) for name, value in vars(client).items() if isinstance(value, Calls)}

    with Client("http://127.0.0.1:9", "mk_1", "mk_2") as client:
        groups = {name: type(value) for name, value in vars(client).items() if isinstance(value, Calls)}
    assert groups == asyncio.run(attributes())
    assert set(groups) == {
        "files",
        "tasks",
        "batches",
        "adapters",
        "completions",
        "models",
        "account",
        "members",
        "merged_models",
        "hub_pushes",
        "tracking_servers",
    }
    for group in {*groups.values(), Admin}:
        calls = {name: call for name, call in vars(group).items() if isinstance(call, Call | Paginated)}
        assert calls
        assert all(call.__doc__ for call in calls.values())
    names = {name for name in vars(Client) if not name.startswith("_")}
    assert names == {name for name in vars(AsyncClient) if not name.startswith("_")}


def test_a_read_outlasts_a_restart(served: Served) -> None:
    script = Script(None, (503, {}, body(detail="starting")), (200, {}, body(**TASK)))

    async def go() -> str:
        async with beside(served(script)) as client:
            return (await client.tasks.get("task_1")).id

    assert asyncio.run(go()) == "task_1"
    assert len(script.asked) == 3


def test_a_change_is_sent_once_and_a_making_again_under_its_key(served: Served, tmp_path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_bytes(b'{"prompt": "a", "completion": "b"}\n')
    lost, made = Script(None, PAGE), Script(None, (201, {}, body(**FILE)))

    async def go() -> None:
        async with beside(served(lost)) as client:
            with pytest.raises(Unreachable, match="does not answer"):
                await client.tasks.pause("task_1")
        async with beside(served(made)) as client:
            assert (await client.files.upload(rows)).id == "file_1"

    asyncio.run(go())
    assert (lost.asked, lost.keys) == (["POST /v1/tasks/task_1/pause"], [None])
    assert len(made.asked) == 2
    assert len(set(made.keys)) == 1
    assert all(rows.read_bytes() in sent for sent in made.bodies)


def test_lists_and_streams_are_iterated(served: Served) -> None:
    frames = b"retry: 1000\n\n: still here\n\n"
    for number in (1, 2):
        event = {"number": number, "type": "status", "data": {}, "created_at": "2026-01-01T00:00:00Z"}
        frames += b"id: %d\nevent: status\ndata: %s\n\n" % (number, json.dumps(event).encode())
    script = Script((200, {"content-type": "text/event-stream"}, frames), (204, {}, b""))

    async def go() -> list[int]:
        async with beside(served(script)) as client:
            return [event.number async for event in client.tasks.events("task_1")]

    assert asyncio.run(go()) == [1, 2]
    assert script.headers[-1]["last-event-id"] == "2", "it goes on behind the last event"


def test_waiting_ends_with_the_task_or_the_time(served: Served) -> None:
    running, done = TASK, TASK | {"status": "succeeded"}
    ends = Script((200, {"etag": '"1"'}, body(**running)), (304, {}, b""), (200, {}, body(**done)))

    async def go() -> str:
        async with beside(served(ends)) as client:
            ended = await client.tasks.wait("task_1")
        async with beside(served(Script((200, {}, body(**running))))) as client:
            with pytest.raises(TaskNotDone, match="still running after 0 s"):
                await client.tasks.wait("task_1", timeout=0)
        return ended.status.value

    assert asyncio.run(go()) == "succeeded"


def test_no_request_waits_beyond_the_timeout(monkeypatch) -> None:
    """Of a task that does not change: the clock goes on by as long as the service holds a request."""
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    steps = tasks.wait("task_1", timeout=60)

    def drive(answer: httpx.Response | None) -> None:
        nonlocal now
        sent = steps.send(answer)
        now += (sent.query or {"wait": 0})["wait"]
        request = httpx.Request("GET", f"http://127.0.0.1{sent.path}")
        drive(httpx.Response(200, headers={"etag": '"1"'}, content=body(**TASK), request=request))

    with pytest.raises(TaskNotDone, match="still running after 60 s"):
        drive(None)
    assert now == 60


def test_a_damaged_download_leaves_nothing(served: Served, tmp_path) -> None:
    async def go() -> None:
        async with beside(served(Script((200, {}, body(**ADAPTER)), (200, {}, b"x")))) as client:
            with pytest.raises(DownloadDamaged, match="arrived damaged"):
                await client.adapters.download("adapter_1", tmp_path / "mine")

    asyncio.run(go())
    assert list(tmp_path.iterdir()) == []
