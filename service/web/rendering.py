"""Renders templates: the Jinja environment, its filters, and what every page's frame shows."""

from functools import cache
from typing import Any

from fastapi import Request
from fastapi.responses import HTMLResponse
from jinja2 import Environment, PackageLoader, StrictUndefined

from service.app_state import state_of
from service.authentication import SESSION_COOKIE, csrf_token
from service.tenants.browser_sessions import is_session
from service.web import static_files
from service.web.views import formats, icons

VIEWER = "viewer"  # key of the page's Viewer in the request's state
THEME_COOKIE, THEMES = "motet_theme", ("auto", "light", "dark")


@cache
def _environment() -> Environment:
    made = Environment(
        loader=PackageLoader("service.web"), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    made.filters |= formats.FILTERS
    made.globals |= {"static": static_files.url, "icon": icons.icon}
    return made


def render(request: Request, template: str, status: int = 200, **shown: Any) -> HTMLResponse:
    """The template with these values, the viewer and the session's CSRF token. Every value is escaped."""
    secret = request.cookies.get(SESSION_COOKIE, "")
    theme = request.cookies.get(THEME_COOKIE, "auto")
    frame = {
        "viewer": request.scope["state"].get(VIEWER),
        "csrf": csrf_token(state_of(request).settings.secret_key.get_secret_value(), secret) if is_session(secret) else "",
        "theme": theme if theme in THEMES else "auto",
        "path": request.url.path,
        "query": request.url.query,
    }
    return HTMLResponse(_environment().get_template(template).render(frame | shown), status)
