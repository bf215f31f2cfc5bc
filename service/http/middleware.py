"""Middleware: request ids, one access log line and duration per request, the size limit of bodies read into memory, that a body
is read once its sender is admitted, that no object in a JSON body has a key twice, and which parameters were ignored."""

import json
import logging
import math
import re
import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from itertools import count
from typing import NoReturn
from urllib.parse import quote

import anyio
from fastapi import Request
from fastapi.routing import APIRoute
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers, MutableHeaders, QueryParams
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from structlog.contextvars import bound_contextvars

from contract.values.strict_json import NotStrict, object_of
from service.http.problems import TooLarge, invalid_field, shown
from service.metrics.api_metrics import ApiMetrics
from service.tracing import span_exporter
from service.tracing.request_trace import RequestSpan, traced

log = logging.getLogger(__name__)

MAX_BODY_BYTES = 16 * 2**20
# these routes read their body in blocks and enforce their own limit; POST /v1/files takes JSON as well, which is read whole
_STREAMED = re.compile(
    r"/v1/files|/openai/v1/files|/openai/v1/uploads/[^/]+/parts|/internal/v1/objects/.*|/v1/admin/model-files/.*|/transfers/uploads/[^/]+"
)
_HEARD_OUT_BYTES, _HEARD_OUT_SECONDS = 4 * 2**20, 2.0
_LONG_JSON_BYTES = 2**16  # a thread looks through longer bodies
# in a JSON body: of each value but a text's letters there is at least one. Python reads so many in a third of a second at most,
# and answers nobody else meanwhile
MAX_JSON_MARKS, _MARKS = 2**19, (b"[", b"{", b",")
MAX_UNKNOWN_BYTES = 2**17  # of a body that no gate stands before; the largest is a node's registration that names 1,000 bases
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


def _says_json(scope: Scope) -> bool:
    kind = Headers(scope=scope).get("content-type", "").partition(";")[0].strip().lower()
    return kind == "application/json" or (kind.startswith("application/") and kind.endswith("+json"))


def _streamed(scope: Scope) -> bool:
    return _STREAMED.fullmatch(scope["path"]) is not None and not (scope["path"] == "/v1/files" and _says_json(scope))


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
    unread, names = [route.dependant], set[str]()
    while unread:
        one = unread.pop()
        names.update(field.alias for field in one.query_params)
        unread += one.dependencies
    return frozenset(names)


class BodyLimit:
    """Refuses bodies of more than MAX_BODY_BYTES, since most routes read theirs into memory, and closes the connection of a
    client that is still sending an unread body."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        body = _Body(scope, receive)

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start" and not body.whole:
                await body.drain()
                if not body.whole:
                    MutableHeaders(scope=message)["Connection"] = "close"
            await send(message)

        await self._app(scope, body.receive, answer)


class _Body:
    """Counts one request's body as it arrives."""

    def __init__(self, scope: Scope, receive: Receive) -> None:
        headers = Headers(scope=scope)
        declared = headers.get("content-length", "0")
        self.whole = declared == "0" and "transfer-encoding" not in headers
        self._declared = int(declared) if declared.isdigit() else 0
        self._receive = receive
        self._limit: float = math.inf if _streamed(scope) else MAX_BODY_BYTES
        self._size = 0

    async def receive(self) -> Message:
        if self._declared > self._limit:  # a slow sender is not waited for
            self._refuse()
        message = await self._receive()
        self.whole = not message.get("more_body", False)
        self._size += len(message.get("body", b""))
        if self._size > self._limit:
            self._refuse()
        return message

    def _refuse(self) -> NoReturn:
        self._limit = math.inf  # once only
        raise HTTPException(413, f"The body may have at most {MAX_BODY_BYTES} bytes.")

    async def drain(self) -> None:
        """Drain up to 4 MiB or 2 s more, so that a client that has nearly sent its body reads the response before the close."""
        self._limit, until = math.inf, self._size + _HEARD_OUT_BYTES
        with anyio.move_on_after(_HEARD_OUT_SECONDS):
            while not self.whole and self._size < until:
                await self.receive()


class Gate(ABC):
    """A dependency that decides by a request's line and headers alone whether its sender is heard."""

    @abstractmethod
    async def admit(self, request: Request) -> object:
        """Raises a Problem if not. May be asked several times about one request."""


class Admission:
    """Asks the gates among a route's dependencies once the route reads its body: FastAPI reads and parses what anybody sends
    before it resolves any dependency. A route without a gate gets MAX_UNKNOWN_BYTES at most."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        asked = known = False
        size = 0

        async def admitted() -> Message:
            nonlocal asked, known, size
            if not asked:
                for gate in _gates(scope):
                    await gate.admit(Request(scope))
                    known = True
                asked = True
            message = await receive()
            size += len(message.get("body", b""))
            if size > MAX_UNKNOWN_BYTES and not known:
                said = f"A body whose sender is not known yet may have at most {MAX_UNKNOWN_BYTES} bytes."
                raise TooLarge(said, limit=MAX_UNKNOWN_BYTES)
            return message

        await self._app(scope, admitted, send)


def _gates(scope: Scope) -> Iterator[Gate]:
    """Those of the request's route."""
    route = scope.get("route")
    within = [route.dependant] if isinstance(route, APIRoute) else []
    while within:
        one = within.pop()
        if isinstance(one.call, Gate):
            yield one.call
        within += one.dependencies


class JsonCheck:
    """Refuses JSON in which an object has a key twice, of which Python's parser would take the last without a word, or of which
    reading would keep all others waiting. It looks where a route reads the body, so once its sender is admitted. Not at what
    workers send."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not _says_json(scope) or _streamed(scope) or scope["path"].startswith("/internal/"):
            await self._app(scope, receive, send)
            return
        body = bytearray()

        async def looked_through() -> Message:
            message = await receive()
            if message["type"] == "http.request":
                body.extend(message.get("body", b""))
                if not message.get("more_body", False):
                    whole = bytes(body)
                    body.clear()
                    await _checked(whole)
            return message

        await self._app(scope, looked_through, send)


async def _checked(body: bytes) -> None:
    """Raises Invalid, which names the key, or TooLarge. What cannot be parsed is left to others to tell."""
    if len(body) > MAX_JSON_MARKS and sum(map(body.count, _MARKS)) > MAX_JSON_MARKS:
        said = f"The body may have at most {MAX_JSON_MARKS:,} commas and opening brackets; send it in several requests."
        raise TooLarge(said, limit=MAX_JSON_MARKS)
    try:
        if len(body) > _LONG_JSON_BYTES:
            await run_in_threadpool(json.loads, body, object_pairs_hook=object_of)
        else:
            json.loads(body, object_pairs_hook=object_of)
    except NotStrict as error:
        raise invalid_field(shown(error.key or ""), "duplicate_key", "stands twice in one object; leave one of them") from None
    except (ValueError, RecursionError):
        return
