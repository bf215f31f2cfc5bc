"""The service as real processes on real sockets: a task reaches its node and its end, whatever is killed or flushed."""

import json
from collections.abc import Iterator

import httpx
import pytest
import redis

from service.database.engine import Database
from service.messaging.wakeups import stream_of
from service.tenants.api_keys import Scope, mint_key
from service.tenants.models import Tenant
from tests.free_ports import free_port
from tests.service.api import Caller
from tests.service.background.queue_processes import Service
from tests.service.background.test_queue import until
from tests.service.fleet.fixtures import join_token
from tests.service.fleet.scripted import ScriptedNode, completed, moved, points
from tests.service.live_server import PATIENCE

SERVICE = ("api", "queue", "reconcile")


@pytest.fixture(scope="module")
def settings(settings_for, database_url, tmp_path_factory):
    """As the service's tests have them, but reconciling often."""
    folder = tmp_path_factory.mktemp("processes")
    return settings_for(database_url, folder, port=free_port(), reconcile_seconds=0.5)


@pytest.fixture(scope="module")
def service(settings, environment_of, tmp_path_factory) -> Iterator[Service]:
    made = Service(settings, environment_of(settings), tmp_path_factory.mktemp("logs"))
    made.start(*SERVICE)
    yield made
    made.stop()


@pytest.fixture
def caller(service, settings, small_model) -> Iterator[Caller]:
    """A tenant over a real connection."""
    database = Database(settings.database_url, pool_size=1)
    with database.begin() as session:
        if session.get(Tenant, "tenant_wired") is None:
            session.add(Tenant(id="tenant_wired", name="wired"))
            session.flush()
        _, key = mint_key(session, "tenant_wired", "test", (Scope.READ, Scope.WRITE))
    database.engine.dispose()
    with httpx.Client(base_url=service.url, timeout=PATIENCE) as client:
        yield Caller(client, "tenant_wired", key)


@pytest.fixture
def node(caller, settings) -> ScriptedNode:
    """The fleet's only node, started anew."""
    return ScriptedNode(caller.client, _join_token(settings), "wired").register()


def _join_token(settings) -> str:
    database = Database(settings.database_url, pool_size=1)
    token = join_token(database, "wired")
    database.engine.dispose()
    return token


def carry_out(node: ScriptedNode, task_id: str) -> None:
    """Train the task by script, from its first report to its last."""
    placement = node.take(task_id)
    placement.report(placement.attached(), moved(0, "warmup"), moved(1, "warmup"), points(0, [1, 2]), points(1, [1, 2]))
    placement.report(placement.adapter(0, 1.5), completed(0, loss=1.5))
    placement.report(placement.adapter(1, 1.4), completed(1, loss=1.4))


def ended(caller: Caller, task_id: str) -> str:
    return caller.get(f"/v1/tasks/{task_id}", params={"wait": 0}).json()["status"]


def test_a_posted_task_is_hinted_to_its_node_by_itself(stack, caller, node):
    connection = redis.Redis.from_url(stack.redis_url)
    task = caller.task()
    heard = connection.xread({stream_of(node.id): "0"}, block=60_000)
    assert heard, "no hint came"
    ((_, ((_, fields), *_)),) = heard
    assert fields == {b"kind": b"desired"}
    until(lambda: task["id"] in [placement.task_id for placement in node.desired().placements])  # or it was of another task
    carry_out(node, task["id"])
    assert ended(caller, task["id"]) == "succeeded"


def test_one_request_id_leads_from_the_call_to_the_node_and_no_secret_does(service, settings, caller, node):
    made = caller.post("/v1/tasks", json=caller.spec(caller.file()), headers={"x-request-id": "walk-1"}).json()
    until(lambda: bool(node.desired().placements))
    assert [placement.request_id for placement in node.desired().placements] == ["walk-1"]
    carry_out(node, made["id"])
    expected = {
        ("service.http.middleware", "request"),
        ("service.tasks.submission.stored_file_check", f"task {made['id']} is queued"),
        ("service.scheduler.state.placement_writer", f"task {made['id']} is placed on node wired"),
    }

    def told() -> set[tuple[str, str]]:
        """By the lines that are whole: each is written after what it tells of, the API's by a thread."""
        whole = [line for name in SERVICE for line in service.said(name).splitlines(keepends=True) if line.endswith("\n")]
        lines = [json.loads(line) for line in whole]
        return {(line["logger"], line["event"]) for line in lines if line.get("request_id") == "walk-1"}

    until(lambda: told() >= expected)
    said = "".join(service.said(name) for name in SERVICE)
    for secret in (caller.key, node.credential, *settings.secrets):
        assert secret not in said


def test_without_valkey_a_task_only_takes_longer(stack, caller, node):
    stack.stop_valkey()
    try:
        version = node.leases().desired_version
        task = caller.task()
        until(lambda: node.leases().desired_version > version)
        carry_out(node, task["id"])
        assert ended(caller, task["id"]) == "succeeded"
    finally:
        stack.start_valkey()


def test_flushed_in_the_middle_nothing_is_lost(stack, caller, node):
    tasks = [caller.task() for _ in range(2)]
    redis.Redis.from_url(stack.redis_url).flushall()
    for _ in tasks:
        until(lambda: bool(node.desired().placements))
        redis.Redis.from_url(stack.redis_url).flushall()
        carry_out(node, node.desired().placements[0].task_id)
    assert [ended(caller, task["id"]) for task in tasks] == ["succeeded"] * 2


@pytest.mark.parametrize("name", ["queue", "reconcile", "api"])
def test_a_killed_process_is_missed_only_until_it_is_back(service, caller, node, name):
    before = caller.task()
    until(lambda: bool(node.desired().placements))
    service.kill(name)
    if name == "api":
        service.start("api")
    task = caller.task()
    carry_out(node, before["id"])
    if name == "queue":  # the reconciler plans what nobody took off the queue
        until(lambda: bool(node.desired().placements))
    if name != "api":
        service.start(name)
    until(lambda: bool(node.desired().placements))
    carry_out(node, task["id"])
    assert ended(caller, task["id"]) == "succeeded"


def test_a_stalled_worker_that_wakes_up_changes_nothing(caller, node, settings):
    """What a worker that was stopped past its lease says is refused, while another finishes its task."""
    task = caller.task()
    until(lambda: bool(node.desired().placements))
    old = node.take(task["id"])
    old.report(old.attached(), moved(0, "warmup"), points(0, [1, 2, 3]))
    fresh = ScriptedNode(caller.client, _join_token(settings), node.name).register()  # the service gave the old one up
    until(lambda: bool(fresh.desired().placements))
    carry_out(fresh, task["id"])
    codes = [old.send(points(0, [4])).status_code, old.send(points(0, [1, 2, 3]), seq=1).status_code]
    assert codes == [409, 409]
    assert node.beat(old.pulse()).status_code == 401
    jobs = caller.get(f"/v1/tasks/{task['id']}/metrics").json()["data"]
    assert [curve["steps"] for curve in jobs if curve["series"] == "train_loss"] == [[1, 2], [1, 2]]
