"""A real browser on a real server: Chromium, headless, whose every page must keep the console clean and ask no other host."""

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import pytest

from service.database.engine import Database
from service.fleet.models import Node
from service.tenants.api_keys import Scope
from tests.conftest import NO_BROWSER
from tests.service.api import Caller
from tests.service.live_server import Server

try:
    from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright
except ImportError:  # the browser's tests say that they were not run
    sync_playwright = None  # type: ignore[assignment]

_SWITCHES = (
    *("--no-sandbox", "--no-first-run", "--disable-sync", "--disable-quic"),
    *("--disable-background-networking", "--disable-component-update"),
)
_PATIENCE_MS = 60_000


def chromium() -> str | None:
    """The browser's program: MOTET_CHROMIUM, one on the path, or the one that `playwright install chromium` made."""
    named = os.environ.get("MOTET_CHROMIUM")
    found = named or next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    return found


@pytest.fixture(scope="module")
def browser(request: pytest.FixtureRequest) -> Iterator["Browser"]:
    """One a module, and not one a run: while playwright is at work this thread has a running event loop, which tests of other
    modules would stumble over."""
    if sync_playwright is None:
        _not_run(request, "playwright is not installed")
    with sync_playwright() as playwright:
        program = chromium()
        if program is None and Path(playwright.chromium.executable_path).exists():
            program = playwright.chromium.executable_path
        if program is None:
            _not_run(request, "no Chromium was found")
        made = playwright.chromium.launch(executable_path=program, args=list(_SWITCHES))
        yield made
        made.close()


def _not_run(request: pytest.FixtureRequest, why: str) -> None:
    if os.environ.get("MOTET_REQUIRE_CHROMIUM"):
        pytest.fail(f"{why}, and MOTET_REQUIRE_CHROMIUM is set")
    pytest.skip(f"{NO_BROWSER}: {why}")


@dataclass
class Visitor:
    """One browser profile. `complaints` are console errors, uncaught errors and requests to other hosts; a test that expects
    some of the browser's own (a refused address is one) takes them out."""

    context: "BrowserContext"
    page: "Page"
    url: str
    complaints: list[str] = field(default_factory=list)

    def open(self, path: str) -> "Page":
        self.page.goto(self.url + path)
        return self.page

    def sign_in(self, key: str) -> "Page":
        self.open("/sign-in")
        self.page.fill("#key", key)
        self.page.click("main button.primary")
        self.page.wait_for_url("**/tasks")
        return self.page

    def expected(self, words: str) -> None:
        """Forgive complaints with these words, of which there must be some."""
        kept = [one for one in self.complaints if words not in one]
        assert len(kept) < len(self.complaints), f"{words!r} is not among {self.complaints}"
        self.complaints[:] = kept


@pytest.fixture
def visit(browser: "Browser", server: Server) -> Iterator[Callable[..., Visitor]]:
    """Open a browser profile: `visit()`, `visit(java_script_enabled=False)`. At the end nobody may have complained."""
    made: list[Visitor] = []

    def start(url: str = server.url, **how: object) -> Visitor:
        context = browser.new_context(**({"viewport": {"width": 1280, "height": 860}} | how))  # type: ignore[arg-type]
        context.set_default_timeout(_PATIENCE_MS)
        visitor = Visitor(context, context.new_page(), url)
        visitor.page.on("console", lambda said: visitor.complaints.append(said.text) if said.type == "error" else None)
        visitor.page.on("pageerror", lambda error: visitor.complaints.append(str(error)))
        context.on("request", lambda asked: None if _own(asked.url, url) else visitor.complaints.append(f"asked {asked.url}"))
        made.append(visitor)
        return visitor

    yield start
    for visitor in made:
        visitor.context.close()
    assert [one for visitor in made for one in visitor.complaints] == []


def _own(asked: str, url: str) -> bool:
    return asked.startswith((url + "/", "data:", "blob:" + url))


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
            id=f"node_{datetime.now(UTC).timestamp():.0f}",
            name=f"gpu-{datetime.now(UTC).timestamp():.6f}".replace(".", "-"),
            boot_id="b",
            status="ready",
            devices=[device, device | {"index": 1}],
            versions={"motet": "0.2.0"},
            credential_hash=b"",
        )
        session.add(made)
    return made
