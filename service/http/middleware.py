"""Middleware: request ids, one access log line and duration per request, and which parameters of a query were ignored."""

import logging
import re
import secrets
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from itertools import count
from urllib.parse import quote

from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from starlette.datastructures import Headers, MutableHeaders, QueryParams
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from structlog.contextvars import bound_contextvars

from service.metrics.api_metrics import ApiMetrics
from service.tracing import span_exporter
from service.tracing.request_trace import RequestSpan, traced

log = logging.getLogger(__name__)

_HEADER, _IGNORED = "x-request-id", "motet-ignored-parameters"
_NAMES, _NAME_LETTERS = 16, 64  # of ignored parameters that are named, and of each name
_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_PROBES = ("/livez", "/readyz")


def request_id(scope: Scope) -> str:
    """The request's id: the caller's if it is well-formed, otherwise a generated one."""
    return str(scope["state"]["request_id"])


def answer_with(scope: Scope, headers: Mapping[str, str]) -> None:
    """Add these headers to the request's response, errors included."""
    scope["state"]["headers"].update(headers)


def _template(scope: Scope) -> str:
    """The route's path, without the ids in it."""
    route = scope.get("route")
    return str(route.path) if route is not None else "(none)"


def _traced(scope: Scope) -> AbstractContextManager[RequestSpan | None]:
    """The trace of a request that may create a task."""
    if scope["method"] != "POST" or not span_exporter.on():
        return nullcontext()
    return traced(Headers(scope=scope).get("traceparent"))


class RequestLog:
    """Gives each request an id, returns it as a header, and logs one line when the response is sent."""

    def __init__(self, app: ASGIApp, metrics: ApiMetrics) -> None:
        self._app, self._metrics = app, metrics
        self._begin()

    def _begin(self) -> None:
        """Start a counter under a random process prefix; a system call per id would release the interpreter lock each time."""
        self._process, self._numbers = secrets.token_hex(4), count()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":  # the process may have forked since __init__, and needs its own prefix
                self._begin()
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get(_HEADER, "")
        id = given if _ID.fullmatch(given) else f"req_{self._process}{next(self._numbers):08x}"
        scope.setdefault("state", {}).update(request_id=id, headers={_HEADER: id})
        status, began = 500, time.perf_counter()

        async def noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                headers.update(scope["state"]["headers"])
                if status == 204:  # FastAPI names the type of a body that is not there
                    del headers["content-type"]
            await send(message)

        with bound_contextvars(request_id=id), _traced(scope) as span:
            try:
                await self._app(scope, receive, noted)
            finally:
                self._say(scope, status, time.perf_counter() - began)
                if span is not None:
                    span.answered(scope["method"], _template(scope), status, id)

    def _say(self, scope: Scope, status: int, seconds: float) -> None:
        template = _template(scope)
        self._metrics.answered(scope["method"], template, status, seconds)
        level = logging.DEBUG if scope["path"] in _PROBES else logging.INFO
        if log.isEnabledFor(level):
            path = template if "{secret}" in template else scope["path"]  # a link's secret may still work
            said = {"method": scope["method"], "path": path, "status": status, "ms": round(seconds * 1000, 1)}
            log.log(level, "request", extra=said)


class IgnoredParameters:
    """Names, in a header of the answer, the parameters of the query that the called route does not have. They are no mistake: a
    client of the next version sends some, and what comes between adds others. Of /v1 alone: OpenAI's clients send OpenAI's."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._parameters: dict[int, frozenset[str]] = {}  # by a route's id(): the app keeps its routes, which have no hash

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not scope["query_string"] or not scope["path"].startswith("/v1/"):
            await self._app(scope, receive, send)
            return

        async def told(message: Message) -> None:
            route = scope.get("route")
            if message["type"] == "http.response.start" and isinstance(route, APIRoute):
                if id(route) not in self._parameters:
                    self._parameters[id(route)] = _parameters(route)
                known = self._parameters[id(route)]
                ignored = [name[:_NAME_LETTERS] for name in QueryParams(scope["query_string"]) if name not in known]
                if ignored:
                    named = [quote(name, safe="") for name in list(dict.fromkeys(ignored))[:_NAMES]]
                    MutableHeaders(scope=message)[_IGNORED] = ", ".join(named)
            await send(message)

        await self._app(scope, receive, told)


def _parameters(route: APIRoute) -> frozenset[str]:
    """The names of the query's parameters that the route, or what it depends on, reads."""
    return frozenset(field.alias for one in dependants(route) for field in one.query_params)


def dependants(route: APIRoute) -> Iterator[Dependant]:
    """The route's own, and those of all that it depends on."""
    unread = [route.dependant]
    while unread:
        one = unread.pop()
        yield one
        unread += one.dependencies
