"""Keeps the internal API and the public one apart where each has a port of its own. Knows no routes but by how they begin."""

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from service.http import problem_handlers
from service.http.problems import NotFound

_INTERNAL = "/internal/"
_PROBES = ("/livez", "/readyz")  # answered on both


class RouteUnknown(NotFound):
    code, title = "route_unknown", "No such route"


class InternalPort:
    """Answers 404 to what came to the other's port. `port`: the internal one; None: one port serves all."""

    def __init__(self, app: ASGIApp, port: int | None) -> None:
        self._app, self._port = app, port

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or self._port is None or self._serves(scope):
            await self._app(scope, receive, send)
            return
        request = Request(scope)
        answer = problem_handlers.respond(request, RouteUnknown(f"There is no {request.url.path} on this port."))
        await answer(scope, receive, send)

    def _serves(self, scope: Scope) -> bool:
        """`server` is the socket that took the connection, whatever the request says of its host."""
        server = scope.get("server")
        internal = server is not None and server[1] == self._port
        return scope["path"] in _PROBES or scope["path"].startswith(_INTERNAL) == internal
