"""Problems outside the pages' own routes, as a browser that is signed in sees them: with the frame and its navigation."""

from collections.abc import Awaitable, Callable
from typing import Any, cast

from fastapi import FastAPI, Request
from sqlalchemy.exc import SQLAlchemyError
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.responses import Response

from service.app_state import state_of
from service.authentication import SESSION_COOKIE, authenticate, require_scope
from service.http.problem_handlers import RENDERER, opened_by_browser
from service.http.problems import Problem
from service.tenants.api_keys import Scope
from service.tenants.browser_sessions import is_session
from service.web.session.viewer import look

_Handler = Callable[[Request, Any], Response]
_UNKNOWN = 404  # raised by the router itself, for an address that no route has


def install(app: FastAPI) -> None:
    """Wrap the app's handlers of problems and unknown addresses, which are installed before."""
    for kind, inner in ((_UNKNOWN, HTTPException), (Problem, Problem)):
        app.add_exception_handler(kind, _framed(cast(_Handler, app.exception_handlers[inner])))


def _framed(answer: _Handler) -> Callable[[Request, Exception], Awaitable[Response]]:
    async def handle(request: Request, error: Exception) -> Response:
        if RENDERER not in request.scope["state"] and opened_by_browser(request):
            await _find_viewer(request)
        return await run_in_threadpool(answer, request, error)

    return handle


async def _find_viewer(request: Request) -> None:
    """Who is signed in, for the frame; without a session, or without a database that knows it, there is no frame."""
    if not is_session(request.cookies.get(SESSION_COOKIE, "")):
        return
    try:
        reader = require_scope(Scope.READ, await authenticate(request, None))
        await look(request, reader, state_of(request).db)
    except (Problem, SQLAlchemyError):
        return
