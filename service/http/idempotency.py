"""Idempotency-Key on POST: repeated or concurrent requests with one key take effect once and get the same answer.

A refused request stores nothing, so the client may send it again under the same key.
"""

import hashlib
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Annotated

from fastapi import Depends, FastAPI, Header, Request
from fastapi.responses import JSONResponse, Response
from starlette.concurrency import run_in_threadpool

from service.database.engine import Database
from service.http import idempotency_store
from service.http.idempotency_store import Replayed
from service.tenants.api_keys import Principal
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


def install(app: FastAPI) -> None:
    """Add the exception handler that sends a stored answer again."""
    app.add_exception_handler(Replayed, _again)  # type: ignore[arg-type]


def _again(request: Request, replayed: Replayed) -> Response:
    return JSONResponse(replayed.body, replayed.status, {**replayed.headers, "Idempotency-Replayed": "true"})


async def once(request: Request, writer: Writer, db: Db, idempotency_key: Key = None) -> AsyncIterator[idempotency_store.Claim]:
    """Claim the request's key for its duration. Raises Replayed, KeyReused or StillInHand if the key is taken."""
    if idempotency_key is None:
        yield idempotency_store.Claim(writer.tenant_id, None, "")
        return
    fingerprint = _fingerprint(request, await request.body())
    found = await run_in_threadpool(idempotency_store.claim, db, writer, idempotency_key, fingerprint)
    try:
        yield found
    finally:
        if not found.kept:
            await run_in_threadpool(found.let_go, db)


async def keyed(request: Request, key: str | None) -> idempotency_store.Keyed | None:
    """The request's key and fingerprint, for a route that claims it in the transaction of its change; None without a key."""
    return None if key is None else idempotency_store.Keyed(key, _fingerprint(request, await request.body()))


@contextmanager
def once_received(
    request: Request, writer: Principal, db: Database, key: str | None, *said: str
) -> Iterator[idempotency_store.Claim]:
    """As `once`, for a body too large for memory that has been received; `said` (its sha256, its name) identifies it."""
    if key is None:
        yield idempotency_store.Claim(writer.tenant_id, None, "")
        return
    found = idempotency_store.claim(db, writer, key, _fingerprint(request, "\0".join(said).encode()))
    try:
        yield found
    finally:
        if not found.kept:
            found.let_go(db)


def _fingerprint(request: Request, body: bytes) -> bytes:
    return hashlib.sha256(b"\0".join((request.method.encode(), request.url.path.encode(), body))).digest()


Once = Annotated[idempotency_store.Claim, Depends(once)]
