"""A headless Chromium for tests, and its visitors, who complain of console errors and of requests to other hosts."""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.conftest import NO_BROWSER

try:
    from playwright.sync_api import Browser, BrowserContext, Frame, Locator, Page, sync_playwright
except ImportError:  # the browser's tests say that they were not run
    sync_playwright = None  # type: ignore[assignment]

_SWITCHES = (
    *("--no-sandbox", "--no-first-run", "--disable-sync", "--disable-quic"),
    *("--disable-background-networking", "--disable-component-update"),
)
_PATIENCE_MS = 120_000
_PAUSE_MS = 50


def chromium() -> str | None:
    """The browser's program: MOTET_CHROMIUM, or one on the path; else playwright has its own, if it was installed."""
    named = os.environ.get("MOTET_CHROMIUM")
    return named or next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@contextmanager
def launched(request: pytest.FixtureRequest) -> Iterator["Browser"]:
    """A browser, or the test is not run and says so; with MOTET_REQUIRE_CHROMIUM it fails."""
    if sync_playwright is None:
        _not_run(request, "playwright is not installed")
    with sync_playwright() as playwright:
        program = chromium()
        if program is None and Path(playwright.chromium.executable_path).exists():
            program = playwright.chromium.executable_path
        if program is None:
            _not_run(request, "no Chromium was found")
        browser = playwright.chromium.launch(executable_path=program, args=list(_SWITCHES))
        yield browser
        browser.close()


def _not_run(request: pytest.FixtureRequest, why: str) -> None:
    if os.environ.get("MOTET_REQUIRE_CHROMIUM"):
        pytest.fail(f"{why}, and MOTET_REQUIRE_CHROMIUM is set")
    pytest.skip(f"{NO_BROWSER}: {why}")


@dataclass
class Visitor:
    """One browser profile. `complaints` are console errors, uncaught errors, requests to other hosts, pages left unawaited; a
    test that expects some of the browser's own (a refused address is one) takes them out."""

    context: "BrowserContext"
    page: "Page"
    url: str
    complaints: list[str] = field(default_factory=list)
    _leaves: bool = False

    def open(self, path: str) -> "Page":
        with self.leaving():
            self.page.goto(self.url + path)
        return self.page

    @contextmanager
    def leaving(self, to: str | None = None) -> Iterator[None]:
        """What is done inside leads to another page (one whose address fits `to`), loaded with its scripts on the way out.

        Playwright's own clicks and keys return as early as the navigation begins, and reads then find the old page or half of
        the new one. So a page that is left in any other way is a complaint.
        """
        self._leaves = True
        with self.page.expect_navigation(url=to):
            yield
        self._leaves = False

    def follow(self, target: "str | Locator", to: str | None = None) -> "Page":
        """Click what leads to another page."""
        with self.leaving(to):
            (self.page.locator(target).first if isinstance(target, str) else target).click()
        return self.page

    def navigated(self, frame: "Frame") -> None:
        if frame == self.page.main_frame and not self._leaves:
            self.complaints.append(f"went to {frame.url} outside of leaving()")

    def sign_in(self, key: str) -> "Page":
        self.open("/sign-in")
        self.page.fill("#key", key)
        return self.follow("main button.primary", to="**/tasks")

    def expected(self, words: str) -> None:
        """Forgive complaints with these words, of which there must be some."""
        kept = [one for one in self.complaints if words not in one]
        assert len(kept) < len(self.complaints), f"{words!r} is not among {self.complaints}"
        self.complaints[:] = kept


@contextmanager
def visiting(browser: "Browser", url: str) -> Iterator[Callable[..., Visitor]]:
    """Opens browser profiles: `visit()`, `visit(java_script_enabled=False)`. At the end nobody may have complained."""
    visitors: list[Visitor] = []

    def visit(url: str = url, **how: object) -> Visitor:
        context = browser.new_context(**({"viewport": {"width": 1280, "height": 860}} | how))  # type: ignore[arg-type]
        context.set_default_timeout(_PATIENCE_MS)
        visitor = Visitor(context, context.new_page(), url)
        visitor.page.on("console", lambda said: visitor.complaints.append(said.text) if said.type == "error" else None)
        visitor.page.on("pageerror", lambda error: visitor.complaints.append(str(error)))
        visitor.page.on("framenavigated", visitor.navigated)
        context.on("request", lambda asked: None if _own(asked.url, url) else visitor.complaints.append(f"asked {asked.url}"))
        visitors.append(visitor)
        return visitor

    yield visit
    for visitor in visitors:
        visitor.context.close()
    complaints = [complaint for visitor in visitors for complaint in visitor.complaints]
    assert not complaints, complaints


def _own(asked: str, url: str) -> bool:
    return asked.startswith((url + "/", "data:", "blob:" + url))


def eventually(page: "Page", expression: str, argument: object = None) -> None:
    """Wait until the expression is true. Playwright's own wait compiles text in the page, which the pages' policy forbids."""
    for _ in range(_PATIENCE_MS // _PAUSE_MS):
        if page.evaluate(expression, argument):
            return
        page.wait_for_timeout(_PAUSE_MS)
    raise AssertionError(f"it did not come to pass: {expression}")
