"""Middleware for bodies: how large they may be, that one is read once its sender is admitted, and what JSON they may hold."""

import json
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import NoReturn

import anyio
from fastapi import Request
from fastapi.routing import APIRoute
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from contract.values.strict_json import NotStrict, object_of
from service.http.middleware import dependants
from service.http.problems import TooLarge, invalid_field, shown

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


def _says_json(scope: Scope) -> bool:
    kind = Headers(scope=scope).get("content-type", "").partition(";")[0].strip().lower()
    return kind == "application/json" or (kind.startswith("application/") and kind.endswith("+json"))


def _streamed(scope: Scope) -> bool:
    return _STREAMED.fullmatch(scope["path"]) is not None and not (scope["path"] == "/v1/files" and _says_json(scope))


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
    if not isinstance(route, APIRoute):
        return
    for one in dependants(route):
        if isinstance(one.call, Gate):
            yield one.call


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
