"""Separates the internal API from the public one when each has its own port. Knows routes only by their path prefix."""

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from service.http import problem_handlers
from service.http.problems import NotFound

_INTERNAL = "/internal/"
_PROBES = ("/livez", "/readyz")  # served on both ports


class RouteUnknown(NotFound):
    code, title = "route_unknown", "No such route"


class InternalPort:
    """Answers 404 to a request on the wrong port. `port`: the internal port; None: one port serves both APIs."""

    def __init__(self, app: ASGIApp, port: int | None) -> None:
        self._app, self._port = app, port

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or self._port is None or self._serves(scope):
            await self._app(scope, receive, send)
            return
        request = Request(scope)
        answer = problem_handlers.problem_response(request, RouteUnknown(f"There is no {request.url.path} on this port."))
        await answer(scope, receive, send)

    def _serves(self, scope: Scope) -> bool:
        """Whether this port serves the path. `server` is the accepting socket's address, which no Host header can forge."""
        server = scope.get("server")
        internal = server is not None and server[1] == self._port
        return scope["path"] in _PROBES or scope["path"].startswith(_INTERNAL) == internal
