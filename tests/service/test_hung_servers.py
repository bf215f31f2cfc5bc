"""A server that is stopped, not dead, costs a request a bounded time: Postgres then a 503, Valkey nothing but its hints."""

import asyncio
import threading
from collections.abc import Callable

import httpx
import pytest
import redis

from service.background.queue import Queue, QueueJob
from service.background.wakeups import Hints, connect
from service.tenants.rate_limits import RateLimitExceeded, Rates
from tests.service.api import CHAT, jsonl
from tests.service.live_server import PATIENCE, live

SHORT = {"statement_timeout_seconds": 0.5, "lock_timeout_seconds": 0.3}


@pytest.fixture
def impatient(database_url, settings_for, tmp_path):
    """Settings of a service whose statements have half a second."""
    return settings_for(database_url, tmp_path, **SHORT)


@pytest.fixture
def calls(impatient, tenant) -> Callable[..., httpx.Client]:
    """A server of these settings, and the tenant over its socket."""
    with live(impatient) as server, httpx.Client(base_url=server.url, headers=tenant.headers, timeout=PATIENCE) as http:
        yield http


def all_at_once(calls: list[Callable[[], httpx.Response]]) -> list[httpx.Response]:
    answers: list[httpx.Response | None] = [None] * len(calls)

    def ask(at: int) -> None:
        answers[at] = calls[at]()

    threads = [threading.Thread(target=ask, args=[at]) for at in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [answer for answer in answers if answer is not None]


def test_a_hung_postgres_is_a_503_that_says_when_to_come_again(stack, calls, tenant):
    task = tenant.task()["id"]
    asked = [
        lambda: calls.get("/v1/tasks"),
        lambda: calls.get(f"/v1/tasks/{task}"),  # by the event loop's own connection
        lambda: calls.get(f"/v1/tasks/{task}?wait=1"),
        lambda: calls.post(f"/v1/tasks/{task}/pause"),
        lambda: calls.post("/v1/files", files={"file": ("rows.jsonl", jsonl(CHAT))}),
        lambda: calls.get("/v1/quotas", headers={"Authorization": "Bearer mk_never_seen"}),
        lambda: calls.get("/readyz"),
    ] * 4
    assert calls.get("/v1/tasks").status_code == calls.get(f"/v1/tasks/{task}").status_code == 200  # connections are open
    with stack.hung_postgres():
        answers = all_at_once(asked)
        again = all_at_once(asked)  # by new connections, which nobody takes up
        assert calls.get("/livez").status_code == 200
    for answer in answers + again:
        assert answer.status_code == 503, answer.text
        assert int(answer.headers["retry-after"]) >= 1
        assert answer.headers["content-type"] == "application/problem+json"
    codes = {answer.json()["code"] for answer in answers + again}
    assert codes == {"database_unavailable", "not_ready"}
    until_served(calls, f"/v1/tasks/{task}")
    until_served(calls, "/v1/tasks")
    until_served(calls, "/readyz")


def until_served(calls: httpx.Client, path: str) -> None:
    pause = threading.Event()
    for _ in range(200):
        if calls.get(path).status_code == 200:
            return
        pause.wait(0.1)
    raise AssertionError(f"{path} is not served again")


def test_a_hung_valkey_holds_nobody_up(stack, calls, tenant):
    """Each would wait for a timeout or two; only the first of each kind does."""
    spec = tenant.spec(tenant.file())
    with stack.hung_valkey():
        made = [calls.post("/v1/tasks", json=spec) for _ in range(40)]
        assert [answer.status_code for answer in made] == [201] * 40
        assert calls.get(f"/v1/tasks/{made[-1].json()['id']}").status_code == 200


def test_a_hung_valkey_is_asked_once_and_then_left_alone(stack, settings, monkeypatch):
    asked: list[str] = []
    really = redis.connection.AbstractConnection.send_packed_command
    hints, queue, rates = Hints(settings.redis_url), Queue(settings.redis_url), Rates(settings.redis_url)

    def counted(connection: redis.connection.AbstractConnection, *given: object, **how: object) -> object:
        asked.append(threading.current_thread().name)
        return really(connection, *given, **how)

    async def take(times: int) -> int:
        passed = 0
        for _ in range(times):
            try:
                await rates.take("hung", 5)
                passed += 1
            except RateLimitExceeded:
                continue
        return passed

    with stack.hung_valkey():
        with pytest.raises(redis.TimeoutError):
            connect(settings.redis_url).ping()
        hints.desired_changed("node_x")
        queue.wake(QueueJob.SWEEP)
        assert asyncio.run(take(8)) == 5, "counted by this process alone, and bounded"
        monkeypatch.setattr(redis.connection.AbstractConnection, "send_packed_command", counted)
        for _ in range(50):
            hints.desired_changed("node_x")
            queue.wake(QueueJob.DELIVER)
        asyncio.run(take(8))
        assert len(asked) <= 3, "one try of each in five seconds at most"
    for breaker in (hints._breaker, queue._breaker, rates._breaker):
        breaker._try_at = 0.0  # as comes by itself within seconds
    hints.desired_changed("node_y")
    with redis.Redis.from_url(stack.redis_url) as valkey:
        assert valkey.xlen("motet:node:node_y") == 1
