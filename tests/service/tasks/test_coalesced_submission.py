"""Submissions that come at once are made by one transaction, each for itself: what is wrong with one is its own affair."""

import asyncio
import socket
import threading
from typing import Any

import httpx
import pytest
from sqlalchemy import select, update
from sqlalchemy.exc import DataError, OperationalError

from contract.states import JobStatus
from service.database.engine import Database
from service.tasks import actions
from service.tasks.models import Job, Task, TaskEvent
from service.tasks.submission.coalesced_submission import SubmissionCoalescer
from service.tenants.models import Tenant
from service.usage.quotas import MAX_SHARED_TASKS
from tests.service.live_server import PATIENCE


class Batches(list[list[str | None]]):
    """The names of the tasks that each transaction was asked for, in turn."""

    def __init__(self) -> None:
        self.whole = threading.Event()  # all submissions of a storm have come
        self.missing = 0

    def expect(self, count: int) -> None:
        """Hold the next transaction until so many submissions have come: those that it leaves out share the others."""
        self.whole.clear()
        self.missing = count

    def came(self) -> None:
        self.missing -= 1
        if self.missing <= 0:
            self.whole.set()


@pytest.fixture
def batches(monkeypatch: pytest.MonkeyPatch) -> Batches:
    seen = Batches()
    create_all, submit = actions.create_all, SubmissionCoalescer.submit

    def watched(session: Any, queue: Any, graders: Any, principal: Any, wanted: Any) -> Any:
        seen.append([one.spec.name for one in wanted])
        assert seen.missing <= 0 or seen.whole.wait(PATIENCE)
        return create_all(session, queue, graders, principal, wanted)

    async def submitted(coalescer: SubmissionCoalescer, *given: Any) -> Any:
        seen.came()
        return await submit(coalescer, *given)

    monkeypatch.setattr(actions, "create_all", watched)
    monkeypatch.setattr(SubmissionCoalescer, "submit", submitted)
    return seen


def storm(url: str, posts: list[tuple[dict[str, str], dict[str, Any]]], batches: Batches | None = None) -> list[httpx.Response]:
    """Post all of these specs at once, each with its headers; `batches`: they come before the first is done."""
    if batches is not None:
        batches.expect(len(posts))

    async def post() -> list[httpx.Response]:
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(base_url=url, timeout=PATIENCE, limits=limits) as client:
            return await asyncio.gather(*(client.post("/v1/tasks", json=spec, headers=headers) for headers, spec in posts))

    return asyncio.run(post())


def specs(caller: Any, count: int, **changes: Any) -> list[dict[str, Any]]:
    file_id = caller.file()
    return [caller.spec(file_id, name=f"n{number}", **changes) for number in range(count)]


def test_each_has_its_own_task_jobs_event_and_audit_entry(server, tenant, database, batches):
    wanted = specs(tenant, 40)
    posts = [(tenant.headers | {"x-request-id": f"mine-{spec['name']}"}, spec) for spec in wanted]
    answers = storm(server.url, posts, batches)
    assert [answer.status_code for answer in answers] == [201] * 40
    assert len(batches) < 40
    assert max(map(len, batches)) <= MAX_SHARED_TASKS
    assert sorted(name for batch in batches for name in batch if name is not None) == sorted(s["name"] for s in wanted)
    for spec, answer in zip(wanted, answers, strict=True):
        made = answer.json()
        assert made["name"] == spec["name"]
        assert answer.headers["location"] == f"/v1/tasks/{made['id']}"
        assert answer.headers["x-request-id"] == f"mine-{spec['name']}"
    with database.begin() as session:
        for answer in answers:
            made = answer.json()
            task = session.get_one(Task, made["id"])
            assert (task.name, task.request_id, task.tenant_id) == (made["name"], f"mine-{made['name']}", tenant.tenant_id)
            assert task.created_at.isoformat() == made["created_at"].replace("Z", "+00:00")
            jobs = session.scalars(select(Job).where(Job.task_id == task.id).order_by(Job.index)).all()
            assert [(job.index, job.status, job.config["learning_rate"]) for job in jobs] == [
                (0, JobStatus.PENDING, 1e-4),
                (1, JobStatus.PENDING, 1e-3),
            ]
            first = session.scalars(select(TaskEvent).where(TaskEvent.task_id == task.id, TaskEvent.number == 1)).one()
            assert (first.kind, first.data) == ("status", {"status": "validating"})
    told = tenant.get("/v1/audit", params={"action": "create_task", "limit": 100}).json()["data"]
    assert {(one["request_id"], *one["targets"]) for one in told} == {
        (f"mine-{answer.json()['name']}", answer.json()["id"]) for answer in answers
    }


def test_what_is_wrong_with_one_is_its_own_affair(server, tenant, batches):
    wanted = specs(tenant, 24)
    for number in range(0, 24, 3):
        wanted[number]["base_model"] = f"none-{number}"
    answers = storm(server.url, [(tenant.headers, spec) for spec in wanted], batches)
    assert [answer.status_code for answer in answers] == [422, 201, 201] * 8
    for number in range(0, 24, 3):
        said = answers[number].json()
        assert (said["code"], said["request_id"]) == ("task_refused", answers[number].headers["x-request-id"])
        assert f"'none-{number}'" in said["detail"]
    assert len(batches) < 24
    assert len(tenant.get("/v1/tasks", params={"limit": 100}).json()["data"]) == 16
    assert len(tenant.get("/v1/audit", params={"action": "create_task", "limit": 100}).json()["data"]) == 16


def test_a_storm_takes_what_room_there_is_and_no_more(server, tenant, database, batches):
    wanted = specs(tenant, 20)
    wanted[0]["base_model"] = "none"  # a refused submission takes no room
    with database.begin() as session:
        session.execute(update(Tenant).where(Tenant.id == tenant.tenant_id).values(queued_tasks_quota=7))
    answers = storm(server.url, [(tenant.headers, spec) for spec in wanted], batches)
    codes = sorted(answer.status_code for answer in answers)
    assert codes.count(201) == 7
    refused = [answer.json() for answer in answers if answer.status_code == 403]
    assert {(said["code"], said["quota"], said["limit"], said["used"]) for said in refused} == {
        ("quota_exceeded", "queued_tasks", 7, 7)
    }
    assert len(refused) + codes.count(422) == 13
    assert len(batches) < 20


@pytest.mark.parametrize(
    ("fault", "status", "code"), [(DataError("x", None, ValueError()), 422, "unstorable"), (KeyError("x"), 500, "internal")]
)
def test_an_unforeseen_fault_of_one_spoils_nobody_elses(server, tenant, monkeypatch, batches, fault, status, code):
    """The contract lets nothing through that should end like that; should it ever, the others have their tasks."""
    store = actions.insert_tasks

    def refuses(session: Any, made: Any) -> None:
        store(session, made)
        if any(task.name == "n3" for task, _ in made):
            raise fault

    monkeypatch.setattr(actions, "insert_tasks", refuses)
    answers = storm(server.url, [(tenant.headers, spec) for spec in specs(tenant, 12)], batches)
    assert [answer.status_code for answer in answers] == [201] * 3 + [status] + [201] * 8
    assert answers[3].json()["code"] == code
    assert max(map(len, batches)) > 1
    assert len(tenant.get("/v1/tasks", params={"limit": 100}).json()["data"]) == 11
    told = tenant.get("/v1/audit", params={"action": "create_task", "limit": 100}).json()["data"]
    assert sorted(one["targets"] for one in told) == sorted([a.json()["id"]] for a in answers if a.status_code == 201)


def test_a_database_that_goes_away_meanwhile_makes_nothing_twice(server, tenant, monkeypatch, batches):
    """Nobody knows what was stored, so nobody tries again but the caller."""
    calls: list[int] = []

    def gone(session: Any, made: Any) -> None:
        calls.append(len(made))
        raise OperationalError("x", None, ValueError("the connection is lost"))

    monkeypatch.setattr(actions, "insert_tasks", gone)
    answers = storm(server.url, [(tenant.headers, spec) for spec in specs(tenant, 12)], batches)
    assert {answer.status_code for answer in answers} == {503}
    assert sum(calls) == 12
    assert max(calls) > 1


def test_two_keys_of_a_tenant_have_their_own_entries(server, tenant, admin, batches):
    made = admin.post(f"/v1/admin/tenants/{tenant.tenant_id}/keys", json={}).json()
    other = {"Authorization": f"Bearer {made['secret']}"}
    wanted = specs(tenant, 16)
    answers = storm(
        server.url, [(other if number % 2 else tenant.headers, spec) for number, spec in enumerate(wanted)], batches
    )
    assert {answer.status_code for answer in answers} == {201}
    assert max(map(len, batches)) > 1
    told = tenant.get("/v1/audit", params={"action": "create_task", "limit": 100}).json()["data"]
    keys = {one["targets"][0]: one["key_id"] for one in told}
    assert len(keys) == 16
    assert [len({keys[answer.json()["id"]] for answer in half}) for half in (answers[::2], answers[1::2])] == [1, 1]
    assert len(set(keys.values())) == 2


def test_tenants_storms_do_not_mix(server, tenant, new_tenant, batches):
    other = new_tenant()
    posts = [
        (caller.headers, spec) for pair in zip(specs(tenant, 10), specs(other, 10), strict=True) for caller, spec in
        zip((tenant, other), pair, strict=True)
    ]  # fmt: skip
    answers = storm(server.url, posts, batches)
    assert [answer.status_code for answer in answers] == [201] * 20
    assert max(map(len, batches)) > 1
    mine = {answer.json()["id"] for answer in answers[::2]}
    assert {one["id"] for one in tenant.get("/v1/tasks", params={"limit": 100}).json()["data"]} == mine
    assert len(other.get("/v1/tasks", params={"limit": 100}).json()["data"]) == 10
    foreign = tenant.get("/v1/files").json()["data"][0]["id"]
    taken = storm(server.url, [(other.headers, other.spec(foreign))] * 3)
    assert {answer.status_code for answer in taken} == {422}


def test_a_large_search_keeps_nobody_waiting(server, tenant, batches):
    rates = [1e-4 * (1 + number / 1000) for number in range(65)]
    large = specs(tenant, 3, search_space={"learning_rate": rates, "batch_size": [4]})
    assert {answer.status_code for answer in storm(server.url, [(tenant.headers, spec) for spec in large])} == {201}
    assert sorted(map(len, batches)) == [1, 1, 1]  # each on its own, as FastAPI brings it


def test_without_the_database_all_are_told_so(server, tenant, monkeypatch):
    wanted = specs(tenant, 5)
    monkeypatch.setattr(server.state.db, "engine", Database("postgresql+psycopg://motet@127.0.0.1:1/motet", 1).engine)
    answers = storm(server.url, [(tenant.headers, spec) for spec in wanted])
    assert {answer.status_code for answer in answers} == {503}
    monkeypatch.undo()
    assert storm(server.url, [(tenant.headers, wanted[0])])[0].status_code == 201


def test_keyed_submissions_share_transactions_and_take_effect_once(server, tenant, batches):
    wanted = specs(tenant, 24)
    wanted[5]["base_model"] = "none"
    posts = [(tenant.headers | {"idempotency-key": f"key-{number}"}, spec) for number, spec in enumerate(wanted)]
    first = storm(server.url, posts, batches)
    assert [answer.status_code for answer in first] == [201] * 5 + [422] + [201] * 18
    assert max(map(len, batches)) > 1
    made = len(batches)
    wanted[5]["base_model"] = "small"  # another body: a refusal keeps nothing, so its key is free
    again = storm(server.url, posts)
    assert [answer.status_code for answer in again] == [201] * 24
    replayed = [(one, other) for number, (one, other) in enumerate(zip(first, again, strict=True)) if number != 5]
    assert [one.json() for one, _ in replayed] == [other.json() for _, other in replayed]
    assert {other.headers["idempotency-replayed"] for _, other in replayed} == {"true"}
    assert sum(map(len, batches[made:])) == 1
    changed = storm(server.url, [(headers, spec | {"priority": 2}) for headers, spec in posts])
    assert {(answer.status_code, answer.json()["code"]) for answer in changed} == {(422, "idempotency_key_reused")}
    assert len(tenant.get("/v1/tasks", params={"limit": 100}).json()["data"]) == 24


def test_a_key_that_comes_twice_in_one_storm_makes_one_task(server, tenant, batches):
    wanted = specs(tenant, 4)
    posts = [(tenant.headers | {"idempotency-key": f"key-{spec['name']}"}, spec) for spec in wanted for _ in range(4)]
    answers = storm(server.url, posts)
    assert {answer.status_code for answer in answers} <= {201, 409}
    assert {answer.json()["code"] for answer in answers if answer.status_code == 409} <= {"idempotency_in_flight"}
    ids = {answer.json()["id"] for answer in answers if answer.status_code == 201}
    assert {one["id"] for one in tenant.get("/v1/tasks", params={"limit": 100}).json()["data"]} == ids
    assert len(ids) == 4


def test_a_body_is_not_read_before_the_key_is_known(server):
    """A request that declares a body and never sends it is refused for its key."""
    url = httpx.URL(server.url)
    with socket.create_connection((url.host, url.port), timeout=PATIENCE) as caller:
        caller.sendall(
            b"POST /v1/tasks HTTP/1.1\r\nHost: motet\r\nAuthorization: Bearer mk_wrong\r\n"
            b"Content-Type: application/json\r\nContent-Length: 1000\r\n\r\n"
        )
        assert caller.recv(100).startswith(b"HTTP/1.1 401 ")
