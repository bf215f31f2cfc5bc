"""Waiting for a page. Playwright's own wait_for_function compiles its text in the page, which the pages' policy forbids."""

from typing import Any

from tests.service.live_server import PATIENCE

_PAUSE_MS = 50


def eventually(page: Any, expression: str, argument: object = None) -> None:
    """Wait until the expression is true in the page."""
    for _ in range(int(PATIENCE * 1000 / _PAUSE_MS)):
        if page.evaluate(expression, argument):
            return
        page.wait_for_timeout(_PAUSE_MS)
    raise AssertionError(f"it did not come to pass: {expression}")
