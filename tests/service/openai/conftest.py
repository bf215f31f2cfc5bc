"""The fleet's fixtures, an executor that answers completions, and who asks it."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import pytest

from tests.service.fleet.fixtures import dependencies, new_node, nothing_left, plan
from tests.service.fleet.scripted import ScriptedNode, ScriptedPlacement, moved
from tests.service.openai.completion_executor import Executor, asking

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
def ask(server, tenant) -> Iterator[Callable[..., Future[Any]]]:
    with asking(server, tenant.key) as made:
        yield made
