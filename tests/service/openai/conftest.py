"""The fleet's fixtures, an executor that answers completions, and who asks it."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import delete, func, update

from service.completions.models import CompletionRequest
from service.fleet.models import BaseModel
from tests.service.fleet.fixtures import dependencies, new_node, nothing_left, plan
from tests.service.fleet.scripted import ScriptedNode, ScriptedPlacement, moved
from tests.service.openai.completions.completion_executor import Executor, asking

__all__ = ["dependencies", "new_node", "nothing_left", "plan"]


@pytest.fixture
def training(tenant, new_node, plan) -> Callable[..., ScriptedPlacement]:
    """A task of a tenant that runs on a node of its own."""

    def start(caller: Any = None, node: ScriptedNode | None = None, **changes: Any) -> ScriptedPlacement:
        node = node or new_node(said={"capabilities": None})
        task = (caller or tenant).task(**changes)
        plan()
        placement = node.take(task["id"])
        node.leases(placement.pulse())
        placement.report(placement.attached(), moved(0, "warmup"), moved(1, "warmup"))
        return placement

    return start


@pytest.fixture
def executor(training) -> Executor:
    return Executor(training())


@pytest.fixture
def ask(server, tenant, database) -> Iterator[Callable[..., Future[Any]]]:
    """Requests that are left over are refused at the end, as if they had waited long."""
    with asking(server, tenant.key) as made:
        yield made
        with database.begin() as session:
            session.execute(update(CompletionRequest).values(created_at=func.now() - timedelta(minutes=5)))


@pytest.fixture
def nobody_asks(database, small_model, nothing_left) -> None:
    """No request is left of the test before, and a node may hold the base."""
    with database.begin() as session:
        session.execute(delete(CompletionRequest))
        session.execute(update(BaseModel).values(model_type="llama", parameters=7_000_000, enabled=True))
