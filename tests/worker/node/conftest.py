"""One daemon with its children for all tests of a class, and the fleet API that it joined."""

from collections.abc import Iterator

import pytest

from contract.messages.placement_messages import BaseModelRef
from tests.worker.fleet import Fleet
from tests.worker.running_node import Node, Placing, fleet_with_placements, running


@pytest.fixture(scope="class")
def placed(tiny_base: BaseModelRef, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Fleet, Placing]]:
    with fleet_with_placements(tiny_base, tmp_path_factory.mktemp("f")) as made:
        yield made


@pytest.fixture(scope="class")
def node(placed: tuple[Fleet, Placing], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with running(placed[0], tmp_path_factory.mktemp("node")) as it:
        yield it
