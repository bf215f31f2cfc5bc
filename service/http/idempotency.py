"""Idempotency-Key: a POST that makes something makes it once, however often and however concurrently it is sent.

A request that was refused keeps nothing, so it may be mended and sent again under its key. Knows nothing of what is made.
"""

import hashlib
from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import Depends, FastAPI, Header, Request
from fastapi.responses import JSONResponse, Response
from starlette.concurrency import run_in_threadpool

from service.http import idempotency_store
from service.tenants.authentication import Db, Writer

Key = Annotated[
    str | None,
    Header(
        min_length=1,
        max_length=255,
        pattern=r"^[\x21-\x7e]+$",
        description="Sent again within a day with the same body, the request is answered as it was, and nothing is made twice",
    ),
]


class Replayed(Exception):
    """The request was answered before."""

    def __init__(self, answer: idempotency_store.Answer) -> None:
        super().__init__("answered before")
        self.answer = answer


def install(app: FastAPI) -> None:
    """Let the app answer what was answered before."""
    app.add_exception_handler(Replayed, _again)  # type: ignore[arg-type]


def _again(request: Request, replayed: Replayed) -> Response:
    answer = replayed.answer
    return JSONResponse(answer.body, answer.status or 200, {**(answer.headers or {}), "Idempotency-Replayed": "true"})


async def once(request: Request, writer: Writer, db: Db, idempotency_key: Key = None) -> AsyncIterator[idempotency_store.Claim]:
    """The request's claim on its key. Raises Replayed, KeyReused or StillInHand where the key is taken."""
    if idempotency_key is None:
        yield idempotency_store.Claim(writer.tenant_id, None, "")
        return
    said = b"\0".join((request.method.encode(), request.url.path.encode(), await request.body()))
    found = await run_in_threadpool(idempotency_store.claim, db, writer, idempotency_key, hashlib.sha256(said).digest())
    if isinstance(found, idempotency_store.Answer):
        raise Replayed(found)
    try:
        yield found
    finally:
        if not found.kept:
            await run_in_threadpool(found.let_go, db)


Once = Annotated[idempotency_store.Claim, Depends(once)]
