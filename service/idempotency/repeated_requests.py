"""Idempotency-Key on POST: repeated or concurrent requests with one key take effect once and get the same answer.

A refused request stores nothing, so the client may send it again under the same key.
"""

import hashlib
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Annotated

from fastapi import Depends, FastAPI, Header, Request
from fastapi.responses import JSONResponse, Response
from starlette.concurrency import run_in_threadpool

from service.app_state import Config, state_of
from service.authentication import Admin, MemberOrWriter, Reader, Writer
from service.http.problem_handlers import ValueUnreadable, problem_response
from service.idempotency import idempotency_store
from service.idempotency.idempotency_store import Replayed
from service.secret_box import SecretBox
from service.tenants.api_keys import Principal

IdempotencyKey = Annotated[
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
    app.add_exception_handler(Replayed, replay_answer)  # type: ignore[arg-type]


def replay_answer(request: Request, replayed: Replayed) -> Response:
    try:
        body = idempotency_store.opened(replayed.body, _box(state_of(request).settings))
    except ValueUnreadable as unreadable:
        return problem_response(request, unreadable)
    return JSONResponse(body, replayed.status, {**replayed.headers, "Idempotency-Replayed": "true"})


def _box(settings: Config) -> SecretBox:
    """Encrypts stored answers that hold a credential."""
    return SecretBox.of(settings, "answer under an Idempotency-Key")


AnswerBox = Annotated[SecretBox, Depends(_box)]


async def claim_key(
    request: Request, writer: Writer, idempotency_key: IdempotencyKey = None
) -> AsyncIterator[idempotency_store.Claim]:
    """Claim the request's key for its duration. Raises Replayed, KeyReused or InFlight if the key is taken."""
    async with _claim_around_async(request, writer, idempotency_key) as claim:
        yield claim


async def claim_key_as_admin(
    request: Request, admin: Admin, idempotency_key: IdempotencyKey = None
) -> AsyncIterator[idempotency_store.Claim]:
    """As `claim_key`, on routes that need the scope admin. The key is of the caller's tenant."""
    async with _claim_around_async(request, admin, idempotency_key) as claim:
        yield claim


async def claim_key_as_reader(
    request: Request, reader: Reader, idempotency_key: IdempotencyKey = None
) -> AsyncIterator[idempotency_store.Claim]:
    """As `claim_key`, on a route that needs the scope read alone. Its answer gives the calling key's rights, so no other key is
    sent it."""
    async with _claim_around_async(request, reader, idempotency_key, reader.key_id) as claim:
        yield claim


async def claim_key_as_member(
    request: Request, caller: MemberOrWriter, idempotency_key: IdempotencyKey = None
) -> AsyncIterator[idempotency_store.Claim]:
    """As `claim_key_as_reader`, on a route that members may call whatever their role."""
    async with _claim_around_async(request, caller, idempotency_key, caller.key_id) as claim:
        yield claim


@asynccontextmanager
async def _claim_around_async(
    request: Request, caller: Principal, key: str | None, whose: str | None = None
) -> AsyncIterator[idempotency_store.Claim]:
    if key is None:
        yield idempotency_store.Claim(caller.tenant_id, None, "")
        return
    claiming = _claim_around(request, caller, key, await request.body(), whose)
    claim = await run_in_threadpool(claiming.__enter__)
    try:
        yield claim
    finally:
        await run_in_threadpool(claiming.__exit__, None, None, None)


async def keyed_request_of(request: Request, key: str | None) -> idempotency_store.KeyedRequest | None:
    """The request's key and fingerprint, for a route that claims it in the transaction of its change; None without a key."""
    return None if key is None else idempotency_store.KeyedRequest(key, _fingerprint(request, await request.body()))


@contextmanager
def claim_key_of_body(request: Request, writer: Principal, key: str | None, *said: str) -> Iterator[idempotency_store.Claim]:
    """As `claim_key`, for a body too large for memory that has been received; `said` (its sha256, its name) identifies it."""
    with _claim_around(request, writer, key, "\0".join(said).encode()) as claim:
        yield claim


@contextmanager
def _claim_around(
    request: Request, caller: Principal, key: str | None, body: bytes, whose: str | None = None
) -> Iterator[idempotency_store.Claim]:
    """Claims in transactions of their own, of which the audit log has no entry. whose: who alone may be sent the answer; None:
    a member, or any key of the tenant itself."""
    if key is None:
        yield idempotency_store.Claim(caller.tenant_id, None, "")
        return
    db = state_of(request).db.for_tenant(caller.tenant_id)
    # of a member's own: another member of the tenant must not be sent an answer that may hold their secret
    whose = whose or caller.user_id
    said = body if whose is None else b"\0".join((whose.encode(), body))
    found = idempotency_store.claim(db, caller, key, _fingerprint(request, said))
    try:
        yield found
    finally:
        if not found.answer_stored:
            found.release(db)


def _fingerprint(request: Request, body: bytes) -> bytes:
    return hashlib.sha256(b"\0".join((request.method.encode(), request.url.path.encode(), body))).digest()


ClaimedKey = Annotated[idempotency_store.Claim, Depends(claim_key)]
ReaderClaimedKey = Annotated[idempotency_store.Claim, Depends(claim_key_as_reader)]
MemberClaimedKey = Annotated[idempotency_store.Claim, Depends(claim_key_as_member)]
AdminClaimedKey = Annotated[idempotency_store.Claim, Depends(claim_key_as_admin)]
