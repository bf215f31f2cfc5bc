"""A server that is stopped, not dead, costs a request a bounded time: Postgres then a 503, Valkey nothing but its wakeups."""

import asyncio
import re
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
import redis

from service.database import engine
from service.fleet.worker_authentication import placement_token
from service.messaging import circuit_breaker
from service.messaging.queue import Queue, QueueJob
from service.messaging.wakeups import NodeWakeups, connect
from service.tenants.rate_limits import RateLimitExceeded, Rates
from tests.service.api import CHAT, jsonl
from tests.service.live_server import PATIENCE, live
from tests.service.upgrade.fleet import BASE_MODEL

SHORT = {"statement_timeout_seconds": 0.5, "lock_timeout_seconds": 0.3}


@pytest.fixture
def impatient(database_url, settings_for, tmp_path, monkeypatch):
    """Settings of a service whose statements have half a second, and its connects five."""
    monkeypatch.setitem(engine.CONNECT, "connect_timeout", 5)
    return settings_for(database_url, tmp_path, **SHORT)


@pytest.fixture
def redis_url(stack) -> str:
    """Valkey, by the service's own timeouts."""
    return stack.valkey.url("service")


@pytest.fixture
def calls(impatient, tenant) -> Iterator[httpx.Client]:
    """A server of these settings, and the tenant over its socket, each call on a connection of its own: one that stood idle
    may be closed by the server just as the next call is sent."""
    fresh = httpx.Limits(max_keepalive_connections=0)
    with (
        live(impatient) as server,
        httpx.Client(base_url=server.url, headers=tenant.headers, timeout=PATIENCE, limits=fresh) as http,
    ):
        yield http


@pytest.fixture
def patient_calls(database_url, settings_for, tmp_path, tenant, redis_url) -> Iterator[httpx.Client]:
    """As `calls`, with timeouts of Postgres that no stall of a busy disk reaches."""
    with (
        live(settings_for(database_url, tmp_path, redis_url=redis_url)) as server,
        httpx.Client(base_url=server.url, headers=tenant.headers, timeout=PATIENCE) as http,
    ):
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
    until_served(calls, "/v1/tasks")  # connections are open
    until_served(calls, f"/v1/tasks/{task}")
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


WEBHOOK = {"url": "https://1.1.1.1/hook", "events": ["task.succeeded"]}


def every_call(document: dict[str, Any], spec: dict[str, Any]) -> list[tuple[str, str, dict[str, Any]]]:
    """Each public operation that reads or writes the database, and each internal one, with a body that passes its checks."""
    bodies: dict[tuple[str, str], dict[str, Any]] = {
        ("post", "/v1/tasks"): {"json": spec},
        ("post", "/v1/files"): {"files": {"file": ("rows.jsonl", jsonl(CHAT))}},
        ("post", "/v1/files/preview"): {"json": {"file_id": "file_x", "base_model": "small"}},
        ("post", "/v1/tasks/estimate"): {"json": spec},
        ("post", "/v1/batches"): {"json": {"tasks": [spec]}},
        ("post", "/v1/batches/estimate"): {"json": {"tasks": [spec]}},
        ("post", "/v1/webhooks"): {"json": WEBHOOK},
        ("patch", "/v1/webhooks/{webhook_id}"): {"json": {"enabled": False}},
        ("post", "/v1/tracking-servers"): {"json": {"name": "lab", "url": "https://1.1.1.1"}},
        ("patch", "/v1/tracking-servers/{server_id}"): {"json": {}},
        ("post", "/v1/merged-models"): {"json": {"adapter_id": "adapter_x"}},
        ("post", "/v1/hub-pushes"): {"json": {"adapter_id": "adapter_x", "repository": "org/name", "token": "hf_x"}},
        ("post", "/v1/models"): {"json": {"source": "hf://org/base"}},
        ("post", "/v1/admin/models"): {"json": {"name": "base", "source": str(BASE_MODEL)}},
        ("post", "/v1/admin/join-tokens"): {"json": {"node_name": "gpu-7"}},
        ("post", "/v1/admin/tenants"): {"json": {"name": "hung"}},
        ("patch", "/v1/admin/tenants/{tenant_id}"): {"json": {"weight": 2}},
        ("post", "/v1/admin/tenants/{tenant_id}/keys"): {"json": {"name": "ci"}},
    }
    public = [
        (method, re.sub(r"\{[^}]*\}", "x_01", path), bodies.get((method, path), {}))
        for path, methods in document["paths"].items()
        for method in methods
        if path != "/livez" and not path.startswith("/v1/sign-in")  # without a provider these say so
    ]
    openai = [
        ("post", "files", {"files": {"file": ("rows.jsonl", jsonl(CHAT))}, "data": {"purpose": "fine-tune"}}),
        ("get", "files", {}),
        ("get", "files/file_x", {}),
        ("get", "files/file_x/content", {}),
        ("delete", "files/file_x", {}),
        ("post", "fine_tuning/jobs", {"json": {"model": "small", "training_file": "file_x"}}),
        ("get", "fine_tuning/jobs", {}),
        ("get", "fine_tuning/jobs/task_x", {}),
        ("post", "fine_tuning/jobs/task_x/cancel", {}),
        ("get", "fine_tuning/jobs/task_x/events", {}),
        ("get", "fine_tuning/jobs/task_x/checkpoints", {}),
        ("get", "models", {}),
    ]
    report = {"fence": 1, "seq": 1, "events": [{"kind": "detached"}]}
    node = {"name": "n", "boot_id": "12345678", "devices": [{"index": 0, "type": "cpu", "memory_bytes": 1}]}
    internal = [
        ("post", "nodes", {"json": node}),
        ("post", "nodes/node_x/heartbeats", {"json": {"boot_id": "12345678"}}),
        ("get", "nodes/node_x/desired", {}),
        ("post", "nodes/node_x/lost", {"json": {"reason": "node_lost", "fences": {}}}),
        ("post", "nodes/node_x/cached-files", {"json": {"files": []}}),
        ("post", "placements/PLACEMENT/reports", {"json": report}),
        ("get", "placements/PLACEMENT/files/file_x", {}),
        ("get", "placements/PLACEMENT/objects/" + "a" * 64, {}),
        ("post", "placements/PLACEMENT/uploads", {"json": {"fence": 1, "sha256": "a" * 64, "bytes": 1}}),
    ]
    return (
        public
        + [(method, f"/openai/v1/{path}", body) for method, path, body in openai]
        + [(method, f"/internal/v1/{path}", body) for method, path, body in internal]
    )


def test_every_route_is_a_503_while_postgres_hangs(stack, impatient, calls, admin, tenant):
    """Public, OpenAI's and internal; what needs no database is answered. Each costs a bounded time."""
    spec = tenant.spec(tenant.file())
    document = calls.get("/openapi.json").json()
    token = {"Authorization": f"Bearer {placement_token(impatient, 'placement_x', 1)}"}
    keys = {"Authorization": f"Bearer {admin.key}"}
    asked = [
        (method, path.replace("PLACEMENT", "placement_x"), body | {"headers": token if "PLACEMENT" in path else keys})
        for method, path, body in every_call(document, spec)
    ]
    until_served(calls, "/v1/tasks", keys)  # the key is remembered

    def ask(method: str, path: str, how: dict[str, Any]) -> Callable[[], httpx.Response]:
        return lambda: calls.request(method, path, **how)

    with stack.hung_postgres():
        answers = [
            answer for at in range(0, len(asked), 16) for answer in all_at_once([ask(*one) for one in asked[at : at + 16]])
        ]
    assert len(answers) == len(asked)
    wrong = [
        (method, path, answer.status_code, answer.text[:200])
        for (method, path, _), answer in zip(asked, answers, strict=True)
        if answer.status_code != 503 or int(answer.headers.get("retry-after", 0)) < 1
    ]
    assert wrong == []
    until_served(calls, "/v1/tasks")


def until_served(calls: httpx.Client, path: str, headers: dict[str, str] | None = None) -> None:
    pause = threading.Event()
    for _ in range(200):
        if calls.get(path, headers=headers).status_code == 200:
            return
        pause.wait(0.1)
    raise AssertionError(f"{path} is not served again")


def test_a_hung_valkey_holds_nobody_up(stack, patient_calls, tenant):
    """Each would wait for a timeout or two; only the first of each kind does."""
    spec = tenant.spec(tenant.file())
    with stack.hung_valkey():
        made = [patient_calls.post("/v1/tasks", json=spec) for _ in range(40)]
        assert [(answer.status_code, answer.text) for answer in made if answer.status_code != 201] == []
        assert patient_calls.get(f"/v1/tasks/{made[-1].json()['id']}").status_code == 200


def count_sends(client: redis.Redis, name: str, asked: list[str]) -> None:
    """Note what this client sends from now on; others of this process may send too."""
    kind = client.connection_pool.connection_class

    class Counted(kind):
        def send_packed_command(self, *given: object, **how: object) -> object:
            asked.append(name)
            return super().send_packed_command(*given, **how)

    client.connection_pool.connection_class = Counted


def test_a_hung_valkey_is_asked_once_and_then_left_alone(stack, redis_url, monkeypatch):
    asked: list[str] = []
    now = time.monotonic()
    monkeypatch.setattr(circuit_breaker, "time", SimpleNamespace(monotonic=lambda: now))
    wakeups, queue, rates = NodeWakeups(redis_url), Queue(redis_url), Rates(redis_url)
    for name, client in (("wakeups", wakeups._redis), ("queue", queue._redis), ("rates", rates._redis)):
        count_sends(client, name, asked)

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
            connect(redis_url).ping()
        wakeups.desired_changed("node_x")
        queue.wake(QueueJob.SWEEP)
        assert asyncio.run(take(8)) == 5, "counted by this process alone, and bounded"
        asked.clear()
        for pause, tries in ((0.0, []), (circuit_breaker.SECONDS - 0.1, []), (0.2, ["queue", "rates", "wakeups"])):
            now += pause
            for _ in range(50):
                wakeups.desired_changed("node_x")
                queue.wake(QueueJob.DELIVER)
            asyncio.run(take(8))
            assert sorted(asked) == tries, "one try of each in five seconds at most"
    now += circuit_breaker.SECONDS
    wakeups.desired_changed("node_y")
    with redis.Redis.from_url(stack.redis_url) as valkey:
        assert valkey.xlen("motet:node:node_y") == 1
