"""What surrounds every request: its id, a line in the log, and a bound on bodies that are read whole."""

import logging
import re
import secrets
import time

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

log = logging.getLogger(__name__)

MAX_BODY_BYTES = 16 * 2**20
_STREAMED = ("/v1/files", "/internal/v1/objects/")  # these read their body in blocks and bound it themselves
_HEADER = "x-request-id"
_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_PROBES = ("/livez", "/readyz")


def request_id(scope: Scope) -> str:
    """The request's id: the caller's, if it sent a sane one, or ours."""
    return str(scope["state"]["request_id"])


class RequestLog:
    """Numbers each request, says its id in the answer, and logs one line when it has been answered."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get(_HEADER, "")
        id = given if _ID.fullmatch(given) else f"req_{secrets.token_hex(8)}"
        scope.setdefault("state", {})["request_id"] = id
        status, began = 500, time.perf_counter()

        async def noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)[_HEADER] = id
            await send(message)

        try:
            await self._app(scope, receive, noted)
        finally:
            level = logging.DEBUG if scope["path"] in _PROBES else logging.INFO
            took = (time.perf_counter() - began) * 1000
            log.log(level, "%s %s %d %.1f ms %s", scope["method"], scope["path"], status, took, id)


class BodyLimit:
    """Refuses a body of more than MAX_BODY_BYTES, since all but a few routes read theirs whole."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"].startswith(_STREAMED):
            await self._app(scope, receive, send)
            return
        size = 0

        async def bounded() -> Message:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            if size > MAX_BODY_BYTES:
                raise HTTPException(413, f"The body may have at most {MAX_BODY_BYTES} bytes.")
            return message

        await self._app(scope, bounded, send)
