"""A task that is posted as its base model is removed: one of both is refused, whichever commits last. Two real sessions."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from service.database.engine import Database, new_id
from service.fleet.base_models import model_catalog
from service.fleet.base_models.model_catalog import RevisionInUse
from service.fleet.models import BaseModel
from service.tasks import actions
from tests.service.live_server import PATIENCE, until
from tests.service.lock_waits import waiting_for_locks


@pytest.fixture
def base(database: Database) -> str:
    """A base of this test alone."""
    name = new_id("base")
    with database.begin() as session:
        session.add(
            BaseModel(
                name=name,
                source="/nowhere",
                revision="c" * 64,
                architecture="LlamaForCausalLM",
                parameters=1000,
                max_position=256,
            )
        )
    return name


@pytest.fixture
def halted(monkeypatch):
    """Submissions stop as their spec was checked, before they are inserted: (they did, let them go on)."""
    checked, go_on, insert = threading.Event(), threading.Event(), actions.insert_tasks

    def stops(session, new):
        checked.set()
        assert go_on.wait(PATIENCE)
        insert(session, new)

    monkeypatch.setattr(actions, "insert_tasks", stops)
    return checked, go_on


def posted(tenant, base):
    return tenant.post("/v1/tasks", json=tenant.spec(tenant.file()) | {"base_model": base})


def test_a_task_whose_base_was_removed_since_it_was_checked_is_refused(tenant, database, base, halted):
    checked, go_on = halted
    with ThreadPoolExecutor(1) as other:
        answer = other.submit(posted, tenant, base)
        assert checked.wait(PATIENCE)
        with database.begin() as session:
            model_catalog.remove(session, base)
        go_on.set()
        refused = answer.result(PATIENCE)
    assert (refused.status_code, refused.json()["code"]) == (422, "task_refused")
    assert [(one["field"], one["code"]) for one in refused.json()["errors"]] == [("base_model", "model_changed")]
    assert tenant.get("/v1/tasks").json()["data"] == []


def test_a_task_waits_for_the_removal_of_its_base_that_has_begun(tenant, database, base, halted):
    checked, go_on = halted
    with ThreadPoolExecutor(1) as other:
        answer = other.submit(posted, tenant, base)
        assert checked.wait(PATIENCE)
        with database.begin() as session:
            model_catalog.remove(session, base)
            session.flush()
            go_on.set()
            until(lambda: waiting_for_locks(database))
        refused = answer.result(PATIENCE)
    assert [one["code"] for one in refused.json()["errors"]] == ["model_changed"]


def test_a_removal_waits_for_a_task_that_is_being_stored_and_is_refused(tenant, database, base, monkeypatch):
    stored, go_on, insert = threading.Event(), threading.Event(), actions.insert_tasks

    def stops(session, new):
        insert(session, new)
        stored.set()
        assert go_on.wait(PATIENCE)

    def removed():
        with database.begin() as session:
            model_catalog.remove(session, base)

    monkeypatch.setattr(actions, "insert_tasks", stops)
    with ThreadPoolExecutor(2) as others:
        answer = others.submit(posted, tenant, base)
        assert stored.wait(PATIENCE)
        removal = others.submit(removed)
        until(lambda: waiting_for_locks(database))
        go_on.set()
        made = answer.result(PATIENCE)
        with pytest.raises(RevisionInUse, match=made.json()["id"]):
            removal.result(PATIENCE)
    assert made.status_code == 201
