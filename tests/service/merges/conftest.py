"""The fleet's fixtures, and an adapter in storage."""

import os
from datetime import timedelta

import pytest
from sqlalchemy import update

from contract.compatibility.capabilities import understood
from service.background.garbage_collection import KEPT_SECONDS
from service.merges.merge_starts import start_due_merges
from service.merges.models import MergedModel
from tests.service.fleet.fixtures import dependencies, new_node, nothing_left, plan
from tests.service.sample_tasks import adapter, jobs_of

__all__ = ["dependencies", "new_node", "nothing_left", "plan"]

FILES = {"adapter_config.json": b'{"r": 8}', "adapter_model.safetensors": b"weights"}


@pytest.fixture
def adapter_of(database, storage):
    """Give a tenant an adapter; its id."""

    def make(tenant) -> str:
        task_id = tenant.task()["id"]
        with database.begin() as session:
            return adapter(session, storage, jobs_of(session, task_id)[0], FILES).id

    return make


@pytest.fixture
def merge(adapter_of):
    """Ask for a merge of a new adapter; its id."""

    def ask(tenant) -> str:
        answer = tenant.post("/v1/merged-models", json={"adapter_id": adapter_of(tenant)})
        assert answer.status_code == 201, answer.text
        return answer.json()["id"]

    return ask


@pytest.fixture
def merging_node(new_node):
    """A node of this version."""
    return lambda: new_node(said={"capabilities": sorted(understood())})


@pytest.fixture
def given(database, dependencies):
    """Give queued merges to nodes, pauses over; what this node then has to merge."""

    def start(node, pauses_over=True):
        with database.begin() as session:
            if pauses_over:
                session.execute(update(MergedModel).values(next_at=MergedModel.created_at - timedelta(seconds=1)))
        start_due_merges(dependencies)
        return node.desired().merges

    return start


@pytest.fixture
def aged(storage):
    """Make every object of storage look as old as the collector waits for."""

    def age() -> None:
        for stored in list(storage.keys()):
            path = storage.path(stored.sha256)
            moment = path.stat().st_mtime - KEPT_SECONDS - 60
            os.utime(path, (moment, moment))

    return age
