"""The dashboard in a real browser on a real server: every page must keep the console clean and ask no other host."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from service.database.engine import Database, new_id
from service.fleet.models import Node
from service.tenants.api_keys import Scope
from tests.browser import Visitor, launched, visiting
from tests.service.api import Caller
from tests.service.fleet.fixtures import dependencies, new_node, nothing_left, plan  # noqa: F401  (fixtures)
from tests.service.live_server import Server
from tests.service.web import sweeps
from tests.service.web.page_samples import GRID

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@pytest.fixture(scope="module")
def browser(request: pytest.FixtureRequest) -> Iterator["Browser"]:
    """One a module, and not one a run: while playwright is at work this thread has a running event loop, which tests of other
    modules would stumble over."""
    with launched(request) as browser:
        yield browser


@pytest.fixture
def visit(browser: "Browser", server: Server) -> Iterator[Callable[..., Visitor]]:
    with visiting(browser, server.url) as visit:
        yield visit


@pytest.fixture
def visitor(visit: Callable[..., Visitor], tenant: Caller) -> Visitor:
    """Signed in as the test's tenant, with a key that reads and writes."""
    made = visit()
    made.sign_in(tenant.key)
    return made


@pytest.fixture
def admin_visitor(visit: Callable[..., Visitor], new_tenant: Callable[..., Caller]) -> Visitor:
    made = visit()
    made.sign_in(new_tenant(*Scope).key)
    return made


@pytest.fixture
def node(database: Database) -> Node:
    """A node of two devices, with what runs there."""
    with database.begin() as session:
        device = {"index": 0, "type": "H100", "memory_bytes": 80 * 2**30}
        made = Node(
            id=new_id("node"),
            name=f"gpu-{datetime.now(UTC).timestamp():.6f}".replace(".", "-"),
            boot_id="b",
            status="ready",
            devices=[device, device | {"index": 1}],
            versions={"motet": "0.2.0"},
            credential_hash=b"",
        )
        session.add(made)
    return made


@pytest.fixture
def sweep(tenant, database):
    task = tenant.task(name="a sweep", search_space=GRID, labels={"team": "research"})
    sweeps.begin(database, task["id"])
    return task["id"]
