"""What tests of sharing share: a GPU whose worker shares it, a long task, and a short one that joins it."""

import pytest

from contract.compatibility.capabilities import understood
from tests.service.fleet.scripted import devices
from tests.service.scheduler.planned import start

LONG = {"training": {"epochs": 100, "max_seq_len": 64}}
SHORT = {"training": {"epochs": 1, "max_seq_len": 64}}
SHARES = {"capabilities": sorted(understood())}
GPU = {"devices": devices(1, kind="NVIDIA H200")}


@pytest.fixture
def gpu(new_node):
    """A node of one GPU whose worker can share it. A pass of the small base is nearly all of a step there."""
    return new_node(said=SHARES | GPU)


def history(caller, task_id):
    return caller.get(f"/v1/tasks/{task_id}/plan-history").json()["data"]


def task_of(caller, task_id):
    return caller.get(f"/v1/tasks/{task_id}").json()


def shared(tenant, other, gpu, plan, **more):
    """A long task of a tenant, and a short one of another that joined it; their placements."""
    first = tenant.task(**LONG)["id"]
    plan()
    placed = start(gpu, first)
    second = other.task(**SHORT | more)["id"]
    plan()
    return placed, start(gpu, second)
