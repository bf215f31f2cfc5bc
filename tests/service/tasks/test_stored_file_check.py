"""Tasks whose files are checked before they are queued: whole or damaged, several at once, stopped in the middle."""

import pytest
from sqlalchemy import select

from contract.states import TaskStatus
from service.files.models import File
from service.scheduler.models import PlanRequest
from service.tasks.models import Task, TaskEvent
from service.tasks.submission import stored_file_check
from service.tasks.submission.stored_file_check import validate_due
from tests.service.api import PAIR


def test_a_task_whose_files_are_whole_is_queued(tenant, database, storage, queue):
    task = tenant.task()
    assert validate_due(database, storage, queue) >= 1
    queued = tenant.get(f"/v1/tasks/{task['id']}").json()
    assert (queued["status"], queued["version"]) == ("queued", 2)
    assert queued["queued_at"]
    with database.begin() as session:
        assert "task_arrived" in session.scalars(select(PlanRequest.reason)).all()
    assert validate_due(database, storage, queue) == 0


@pytest.mark.parametrize("damage", ["lost", "changed"])
def test_a_task_whose_file_is_damaged_fails_and_says_so(tenant, database, storage, queue, damage):
    file_id = tenant.file([PAIR | {"prompt": damage + str(n)} for n in range(9)])
    task_id = tenant.post("/v1/tasks", json=tenant.spec(file_id)).json()["id"]
    with database.begin() as session:
        sha256 = session.get_one(File, file_id).sha256
    if damage == "lost":
        storage.delete(sha256)
    else:
        path = storage.path(sha256)
        path.write_bytes(path.read_bytes().replace(b"4", b"5"))
    validate_due(database, storage, queue)
    failed = tenant.get(f"/v1/tasks/{task_id}").json()
    assert failed["status"] == "failed"
    assert file_id in failed["error"]
    assert "upload it again" in failed["error"]
    assert failed["jobs"]["failed"] == 2


def test_tasks_of_the_same_files_are_validated_by_one_reading(tenant, database, storage, queue):
    class Counting:
        """Storage that counts how often it is read."""

        read = 0

        def open(self, sha256: str):
            self.read += 1
            return storage.open(sha256)

    validate_due(database, storage, queue)
    spec, counting = tenant.spec(tenant.file()), Counting()
    tasks = [tenant.post("/v1/tasks", json=spec).json()["id"] for _ in range(5)]
    assert (validate_due(database, counting, queue), counting.read) == (5, 1)
    for task in tasks:
        seen = tenant.get(f"/v1/tasks/{task}").json()
        assert (seen["status"], seen["version"], seen["waiting"]["code"]) == ("queued", 2, "not_planned")
        assert seen["queued_at"] > seen["created_at"]
        assert statuses_told(database, task) == ["validating", "queued"]


class Noted:
    """Storage that notes whose files are read, after `first` was called at the first one, and `each` at all."""

    def __init__(self, storage, owners: dict[str, str], first=lambda: None, each=lambda: None) -> None:
        self.read: list[str] = []
        self._storage, self._owners, self._first, self._each = storage, owners, first, each

    def open(self, sha256: str):
        if not self.read:
            self._first()
        self._each()
        self.read.append(self._owners[sha256])
        return self._storage.open(sha256)


@pytest.fixture
def submit(database):
    """Submits a task of a tenant with rows that no other has; notes whose file has which sha256."""

    def one(tenant, name: str, owners: dict[str, str]) -> None:
        file_id = tenant.file([PAIR | {"prompt": f"{name}{len(owners)}-{n}"} for n in range(9)])
        with database.begin() as session:
            owners[session.get_one(File, file_id).sha256] = name
        assert tenant.post("/v1/tasks", json=tenant.spec(file_id)).status_code == 201

    return one


def test_no_tenant_waits_for_all_files_of_another(new_tenant, database, storage, queue, submit):
    validate_due(database, storage, queue)
    many, one, owners = new_tenant(), new_tenant(), {}
    for _ in range(3):
        submit(many, "many", owners)
    submit(one, "one", owners)
    noted = Noted(storage, owners)
    assert validate_due(database, noted, queue) == 4
    assert noted.read == ["many", "one", "many", "many"]


def test_a_task_that_comes_while_files_are_read_takes_part(new_tenant, database, storage, queue, submit, monkeypatch):
    validate_due(database, storage, queue)
    monkeypatch.setattr(stored_file_check, "_OUTDATED_SECONDS", 0.0)
    many, late, owners = new_tenant(), new_tenant(), {}
    for _ in range(3):
        submit(many, "many", owners)
    noted = Noted(storage, owners, lambda: submit(late, "late", owners))
    assert validate_due(database, noted, queue) == 4
    assert noted.read == ["many", "late", "many", "many"]


def test_a_stream_of_new_tenants_keeps_nobody_waiting_and_ends_the_call_where_it_would(
    new_tenant, database, storage, queue, submit, monkeypatch
):
    """With each file that is read a task of a new tenant comes: the call ends when all that were due at first were tried."""
    validate_due(database, storage, queue)
    monkeypatch.setattr(stored_file_check, "_OUTDATED_SECONDS", 0.0)
    many, owners = new_tenant(), {}
    for _ in range(3):
        submit(many, "many", owners)
    noted = Noted(storage, owners, each=lambda: submit(new_tenant(), "new", owners))
    assert validate_due(database, noted, queue) == len(noted.read) < len(owners)
    assert noted.read == ["many", "new", "many", "new", "new", "many"]


def test_what_could_not_be_read_is_left_to_the_next_call(new_tenant, database, storage, queue, submit):
    validate_due(database, storage, queue)
    owners: dict[str, str] = {}
    submit(new_tenant(), "one", owners)

    def down():
        raise OSError("storage is down")

    noted = Noted(storage, owners, each=down)
    assert validate_due(database, noted, queue) == 0
    assert validate_due(database, Noted(storage, owners), queue) == 1


def statuses_told(database, task_id: str) -> list[str]:
    """By its events, which are numbered without gaps."""
    with database.begin() as session:
        told = list(session.scalars(select(TaskEvent).where(TaskEvent.task_id == task_id).order_by(TaskEvent.number)))
        task = session.get_one(Task, task_id)
        assert (task.last_event, task.told_status) == (len(told), told[-1].data["status"])
    assert [event.number for event in told] == list(range(1, len(told) + 1))
    return [event.data["status"] for event in told]


def test_of_tasks_that_are_validated_together_one_that_was_paused_is_not_queued(tenant, database, storage, queue):
    spec = tenant.spec(tenant.file())
    one, other = (tenant.post("/v1/tasks", json=spec).json()["id"] for _ in range(2))
    tenant.post(f"/v1/tasks/{other}/pause")
    validate_due(database, storage, queue)
    assert [tenant.get(f"/v1/tasks/{task}").json()["status"] for task in (one, other)] == ["queued", "paused"]
    assert statuses_told(database, one) == ["validating", "queued"]
    assert statuses_told(database, other) == ["validating", "paused"]


def test_a_task_that_is_cancelled_while_it_is_validated_stays_cancelled(tenant, database, storage, queue):
    task_id = tenant.task()["id"]

    class Slow:
        """Storage in which reading a file takes just long enough for somebody to cancel."""

        def open(self, sha256: str):
            tenant.post(f"/v1/tasks/{task_id}/cancel")
            return storage.open(sha256)

    validate_due(database, Slow(), queue)
    assert tenant.get(f"/v1/tasks/{task_id}").json()["status"] == TaskStatus.CANCELLED


def test_a_task_that_is_in_another_validators_hands_is_left_to_it(tenant, database, storage, queue):
    class Twice:
        """Storage in which, while a file is read, another validator comes along."""

        found: int | None = None

        def open(self, sha256: str):
            if self.found is None:
                self.found = 0
                self.found = validate_due(database, storage, queue)
            return storage.open(sha256)

    both = Twice()
    validate_due(database, storage, queue)
    task_id = tenant.task()["id"]
    assert validate_due(database, both, queue) == 1
    assert both.found == 0
    assert tenant.get(f"/v1/tasks/{task_id}").json()["status"] == TaskStatus.QUEUED


def test_what_another_validator_has_settled_meanwhile_is_not_read_again(tenant, database, storage, queue):
    class Beside:
        """Storage in which, while the first file is read, another validator does the rest."""

        read = 0

        def open(self, sha256: str):
            self.read += 1
            if self.read == 1:
                assert validate_due(database, storage, queue) == 1
            return storage.open(sha256)

    validate_due(database, storage, queue)
    for answer in ("first", "second"):
        tenant.post("/v1/tasks", json=tenant.spec(tenant.file([PAIR | {"prompt": f"{answer} {n}"} for n in range(9)])))
    beside = Beside()
    assert (validate_due(database, beside, queue), beside.read) == (1, 1)
