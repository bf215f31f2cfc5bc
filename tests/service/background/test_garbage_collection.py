"""The collector removes what nothing refers to for a day, and nothing else."""

import hashlib
import io
import os
import time
from contextlib import ExitStack
from dataclasses import replace
from datetime import timedelta

import pytest
from sqlalchemy import select, text, update

from service.background.garbage_collection import KEPT_SECONDS, Sweeper, sweep
from service.background.retention import Retention
from service.database.engine import clock
from service.files.models import File
from service.storage.object_store import Storage, StorageAway
from service.tasks.models import Task
from tests.service.background.test_queue import until
from tests.service.fleet.scripted import completed, moved, points
from tests.service.live_server import PATIENCE
from tests.service.sample_tasks import adapter, jobs_of


@pytest.fixture
def aged(storage):
    """Make every object of storage look as old as this."""

    def age(seconds: float = KEPT_SECONDS + 60) -> None:
        moment = time.time() - seconds
        for stored in list(storage.keys()):
            os.utime(storage.path(stored.sha256), (moment, moment))

    return age


def held(storage: Storage) -> set[str]:
    return {stored.sha256 for stored in storage.keys()}  # noqa: SIM118  (an iterator of objects, not a mapping)


def put(storage: Storage, content: bytes) -> str:
    sha256 = hashlib.sha256(content).hexdigest()
    storage.put(io.BytesIO(content), sha256, len(content))
    return sha256


def test_what_is_referred_to_stays_and_the_rest_goes_after_a_day(dependencies, storage, tenant, new_node, plan, aged):
    node, task = new_node(), tenant.task()
    plan()
    placement = node.take(task["id"])
    placement.report(moved(0, "warmup"), moved(1, "warmup"), points(0, [1]), placement.checkpoint({0: 1}))
    first = placement.checkpoint({1: 0})
    placement.report(first, placement.adapter(1, 1.5), completed(1, loss=1.5))
    orphan = put(storage, b"uploaded, and never reported")
    sweep(dependencies.db, dependencies.storage)
    assert orphan in held(storage)
    aged()
    young = put(storage, b"uploaded just now")
    before = held(storage)
    ended_jobs_checkpoint = first["jobs"]["1"]["sha256"]
    assert sweep(dependencies.db, dependencies.storage) == 2
    assert before - held(storage) == {orphan, ended_jobs_checkpoint}
    assert young in held(storage)
    # everything that can still be asked for is there
    assert placement.call("GET", f"files/{placement.given.train_file.file_id}").status_code == 200
    again = tenant.get("/v1/adapters").json()["data"]
    assert len(again) == 1


def test_a_deleted_file_goes_once_no_task_and_no_other_file_needs_its_bytes(dependencies, database, storage, new_tenant, aged):
    rows = [{"prompt": f"only here {n}", "completion": str(n)} for n in range(20)]
    tenant, other = new_tenant(), new_tenant()
    needed, same = tenant.file(rows), other.file(rows)
    sha256 = tenant.get(f"/v1/files/{needed}").json()["sha256"]
    task = tenant.post("/v1/tasks", json=tenant.spec(needed)).json()

    def gone() -> bool:
        aged()
        sweep(dependencies.db, dependencies.storage)
        return sha256 not in held(storage)

    assert other.delete(f"/v1/files/{same}").status_code == 204
    with database.begin() as session:  # as if the deletion had come before the task
        session.execute(update(File).where(File.id == needed).values(deleted_at=clock(session)))
    assert not gone()
    assert tenant.post(f"/v1/tasks/{task['id']}/cancel").status_code == 200
    assert gone()


def test_an_expired_file_that_someone_has_locked_is_noted_by_a_later_sweep(dependencies, database, tenant, caplog):
    """Who posts tasks locks files one after another, and would wait for a sweep that waits for one of them."""
    locked, free = tenant.file(), tenant.file([{"prompt": "a", "completion": "b"}])
    with database.begin() as session:
        session.execute(update(File).where(File.id.in_([locked, free])).values(expires_at=File.created_at))

    def noted() -> set[str]:
        with database.begin() as session:
            return set(session.scalars(select(File.id).where(File.deleted_at.is_not(None), File.id.in_([locked, free]))))

    with database.begin() as session:
        session.execute(select(File.id).where(File.id == locked).with_for_update(read=True))
        sweep(dependencies.db, dependencies.storage)
        assert noted() == {free}
    sweep(dependencies.db, dependencies.storage)
    assert noted() == {locked, free}
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


def test_a_sweep_that_storage_breaks_off_is_made_at_the_next_wake(dependencies, storage, aged, caplog):
    orphan, away = put(storage, b"nobody's"), [StorageAway("away", retry_after=1)]
    aged()

    class Flaky:
        def keys(self):
            if away:
                raise away.pop()
            return storage.keys()

        def __getattr__(self, name: str):
            return getattr(storage, name)

    sweeper = Sweeper(replace(dependencies, storage=Flaky()))
    sweeper.wake()
    until(lambda: "the removal of objects that nothing refers to failed and will be tried again: away" in caplog.text)
    assert orphan in held(storage)
    sweeper.wake()
    until(lambda: orphan not in held(storage))
    sweeper.close(PATIENCE)
    assert not sweeper._thread.is_alive()


@pytest.fixture
def without(database):
    """Put this table out of reach until the test ends."""
    with ExitStack() as back:

        def rename(table: str, to: str) -> None:
            with database.begin() as session:
                session.execute(text(f"ALTER TABLE {table} RENAME TO {to}"))

        def put_away(table: str) -> None:
            rename(table, f"{table}_away")
            back.callback(rename, f"{table}_away", table)

        yield put_away


@pytest.mark.parametrize("table", ["ended_totals_through", "usage_rolled_up_through", "plan_changes", "tenant_usage"])
def test_a_step_that_fails_keeps_no_other_from_its_turn(database, dependencies, tenant, storage, aged, without, table, caplog):
    """Neither what a tenant deleted stays, nor objects that nothing refers to."""
    task, orphan = tenant.task()["id"], put(storage, table.encode())
    assert tenant.post(f"/v1/tasks/{task}/cancel").status_code == 200
    assert tenant.delete(f"/v1/tasks/{task}").status_code == 204
    aged()
    without(table)
    sweep(dependencies.db, dependencies.storage, Retention(deleted=timedelta(0)))
    assert f'relation "{table}" does not exist' in caplog.text
    assert orphan not in held(storage)
    with database.begin() as session:
        emptied = session.get_one(Task, task).emptied_at
    assert (emptied is None) == (table == "plan_changes"), "what it could not remove it does not take for removed"


def test_no_object_goes_while_a_row_that_names_objects_is_damaged(database, dependencies, tenant, storage, aged, caplog):
    task, orphan = tenant.task()["id"], put(storage, b"nobody's, perhaps")
    with database.begin() as session:
        made = adapter(session, storage, jobs_of(session, task)[0], {"adapter_config.json": b"{}"})
        made.manifest = {"files": [{"path": "adapter_config.json"}]}
    aged()
    assert sweep(dependencies.db, dependencies.storage) == 0
    assert "the removal of objects that nothing refers to failed and will be tried again: 'sha256'" in caplog.text
    assert orphan in held(storage)
