"""Middleware: request ids, an access log line per request, its duration, and the limit on bodies that are read whole."""

import logging
import math
import re
import secrets
import time
from collections.abc import Mapping
from itertools import count

import anyio
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from structlog.contextvars import bound_contextvars

from service.metrics.api_metrics import ApiMetrics

log = logging.getLogger(__name__)

MAX_BODY_BYTES = 16 * 2**20
# these read their body in blocks and bound it themselves
_STREAMED = re.compile(r"/v1/files|/openai/v1/files|/internal/v1/objects/.*")
_HEARD_OUT_BYTES, _HEARD_OUT_SECONDS = 4 * 2**20, 2.0
_HEADER = "x-request-id"
_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_PROBES = ("/livez", "/readyz")


def request_id(scope: Scope) -> str:
    """The request's id: the caller's, if it sent a sane one, or ours."""
    return str(scope["state"]["request_id"])


def answer_with(scope: Scope, headers: Mapping[str, str]) -> None:
    """Have the request's answer carry these headers, whatever it will be."""
    scope["state"]["headers"].update(headers)


class RequestLog:
    """Numbers each request, says its id in the answer, and logs one line when it has been answered."""

    def __init__(self, app: ASGIApp, metrics: ApiMetrics) -> None:
        self._app, self._metrics = app, metrics
        self._begin()

    def _begin(self) -> None:
        """Count ids under a name of this process: asking the system for each would cost the event loop its turn."""
        self._process, self._numbers = secrets.token_hex(4), count()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":  # the app starts, in a process that may have been forked since
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
                MutableHeaders(scope=message).update(scope["state"]["headers"])
            await send(message)

        with bound_contextvars(request_id=id):
            try:
                await self._app(scope, receive, noted)
            finally:
                self._say(scope, status, time.perf_counter() - began)

    def _say(self, scope: Scope, status: int, seconds: float) -> None:
        route = scope.get("route")
        template = route.path if route is not None else "(none)"
        self._metrics.answered(scope["method"], template, status, seconds)
        level = logging.DEBUG if scope["path"] in _PROBES else logging.INFO
        if log.isEnabledFor(level):
            said = {"method": scope["method"], "path": scope["path"], "status": status, "ms": round(seconds * 1000, 1)}
            log.log(level, "request", extra=said)


class BodyLimit:
    """Refuses bodies of more than MAX_BODY_BYTES, since all but a few routes read theirs whole, and lets nobody go on
    sending what is not read any more."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        body = _Body(scope, receive)

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start" and not body.whole:
                await body.hear_out()
                if not body.whole:
                    MutableHeaders(scope=message)["Connection"] = "close"
            await send(message)

        await self._app(scope, body.receive, answer)


class _Body:
    """One request's body as it comes."""

    def __init__(self, scope: Scope, receive: Receive) -> None:
        headers = Headers(scope=scope)
        self.whole = headers.get("content-length", "0") == "0" and "transfer-encoding" not in headers
        self._receive = receive
        self._limit: float = math.inf if _STREAMED.fullmatch(scope["path"]) else MAX_BODY_BYTES
        self._size = 0

    async def receive(self) -> Message:
        message = await self._receive()
        self.whole = not message.get("more_body", False)
        self._size += len(message.get("body", b""))
        if self._size > self._limit:
            self._limit = math.inf  # said once
            raise HTTPException(413, f"The body may have at most {MAX_BODY_BYTES} bytes.")
        return message

    async def hear_out(self) -> None:
        """Take in a little more, so that a sender who is nearly done gets to read the answer before the connection closes."""
        until = self._size + _HEARD_OUT_BYTES
        with anyio.move_on_after(_HEARD_OUT_SECONDS):
            while not self.whole and self._size < until:
                await self.receive()
