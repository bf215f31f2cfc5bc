"""The fleet's fixtures, for the tests of this folder; planning again, a GPU to share, nodes by what GPUs hold of the base."""

import pytest
from sqlalchemy import select

from contract.compatibility.capabilities import understood
from service.fleet.models import BaseModel
from service.messaging.plan_requests import request_plan
from tests.service.fleet.fixtures import dependencies, new_node, nothing_left, plan, rested
from tests.service.fleet.scripted import devices
from tests.service.scheduler.sharing import gpu

__all__ = ["dependencies", "gpu", "new_node", "nothing_left", "plan", "rested"]

_ABLE = {"capabilities": sorted(understood())}


@pytest.fixture
def again(dependencies, plan):
    """Plan once more, whatever has changed."""

    def turn():
        with dependencies.db.begin() as session:
            request_plan(session, dependencies.queue, "test")
        return plan()

    return turn


@pytest.fixture
def base(tenant, database) -> int:
    """Bytes of the tests' base."""
    with database.begin() as session:
        return 2 * session.scalars(select(BaseModel.parameters)).first()


@pytest.fixture
def small(new_node, base):
    """Nodes whose GPUs hold seven tenths of the base."""

    def make(gpus=4, said=_ABLE, **how):
        return new_node(slots=gpus, said=said | {"devices": devices(gpus, kind="NVIDIA L4", memory=base * 7 // 10)}, **how)

    return make


@pytest.fixture
def large(new_node, base):
    def make(gpus=1):
        return new_node(said=_ABLE | {"devices": devices(gpus, kind="NVIDIA H200", memory=3 * base)})

    return make
