"""A client beside a server that follows a script."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from motet import Client

from tests.client.scripted_server import Script, serving


@pytest.fixture
def served() -> Iterator[Callable[[Script], Client]]:
    with ExitStack() as servers:
        yield lambda script: Client(servers.enter_context(serving(script)), "mk_1")
