"""Routes for a tenant's own API keys, and for links that sign a browser in. No key makes one that may do more than itself."""

from datetime import datetime
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Request
from pydantic import BaseModel, Field
from sqlalchemy import select

from service.app_state import Service, state_of
from service.authentication import Reader, ScopeMissing, Writer, authenticate, note_of
from service.database.engine import Database, clock
from service.http.pagination import Cursor, Limit, Page, page
from service.http.response_schemas import problems
from service.idempotency.repeated_requests import AnswerBox, ClaimedKey, ReaderClaimedKey
from service.tenants.api_keys import Principal, mint_key
from service.tenants.browser_sessions import LINK_LASTS, make_link
from service.tenants.models import ApiKey
from service.tenants.routes import KeyResource, NewKey, refuse_past, revoke
from service.tenants.tenant_scope import find, scoped

router = APIRouter(prefix="/v1", tags=["keys"], responses=problems(401, 403))


async def _db(request: Request, caller: Annotated[Principal, Depends(authenticate)]) -> Database:
    note = note_of(request, caller) if request.method != "GET" else None
    return state_of(request).system.for_tenant(None, note)


# sees every tenant's rows, since the app role may not read keys: each query here is limited by `scoped`
KeysDb = Annotated[Database, Depends(_db)]


class SignInLinkResource(BaseModel):
    object: Literal["sign_in_link"] = "sign_in_link"
    url: str = Field(description="Opens a browser session of this key, once")
    expires_at: datetime


@router.get("/keys", operation_id="list_own_keys", summary="List this tenant's keys, the newest first", responses=problems(422))
def list_own_keys(reader: Reader, db: KeysDb, cursor: Cursor = None, limit: Limit = 20) -> Page[KeyResource]:
    with db.begin() as session:
        keys = scoped(select(ApiKey), ApiKey, reader)
        return page(session, keys, ApiKey, cursor, limit, lambda rows: [KeyResource.of(k) for k in rows])


@router.post(
    "/keys",
    status_code=201,
    operation_id="create_own_key",
    summary="Make another key of this tenant",
    description=(
        "The answer holds the key in `secret`, which cannot be shown again. It may have no scope that the calling key lacks, "
        "lasts no longer, and sends no more requests a minute: what is left out is as in the calling key."
    ),
    responses=problems(400, 409, 422),
)
def create_own_key(new: NewKey, writer: Writer, db: KeysDb, claim: ClaimedKey, answers: AnswerBox) -> KeyResource:
    beyond = [scope.value for scope in new.scopes if scope not in writer.scopes]
    if beyond:
        raise ScopeMissing(f"This key lacks the scope {beyond[0]!r}, so it cannot give it to another.", needs=beyond[0])
    with db.begin() as session:
        own = session.get_one(ApiKey, writer.key_id)
        refuse_past(session, new.expires_at)
        expires_at = min((moment for moment in (new.expires_at, own.expires_at) if moment is not None), default=None)
        rates = [rate for rate in (new.requests_per_minute, own.requests_per_minute) if rate is not None]
        key, secret = mint_key(session, writer.tenant_id, new.name, tuple(new.scopes), expires_at, min(rates, default=None))
        made = KeyResource.of(key, secret)
        claim.store_answer(session, 201, made, {}, box=answers)
    return made


@router.delete(
    "/keys/{key_id}",
    operation_id="revoke_own_key",
    summary="Revoke one of this tenant's keys",
    description="Every process of the service refuses it, and its browser sessions, within seconds.",
    responses=problems(404),
)
def revoke_own_key(key_id: str, writer: Writer, db: KeysDb, service: Service) -> KeyResource:
    with db.begin() as session:
        key = find(session, ApiKey, key_id, writer, "key", lock=True)
        beyond = [scope for scope in key.scopes if scope not in writer.scopes]
        if beyond:
            raise ScopeMissing(f"This key lacks the scope {beyond[0]!r} of the key that it would revoke.", needs=beyond[0])
        revoke(session, key)
    service.keys.forget()
    return KeyResource.of(key)


@router.post(
    "/sign-in-links",
    status_code=201,
    operation_id="create_sign_in_link",
    summary="Make a link that signs a browser in",
    description="It works once, within 15 minutes, and gives the browser the rights of the calling key.",
    responses=problems(409),
)
def create_sign_in_link(
    reader: Reader, db: KeysDb, request: Request, claim: ReaderClaimedKey, answers: AnswerBox
) -> SignInLinkResource:
    with db.begin() as session:
        secret, expires_at = make_link(session, reader), clock(session) + LINK_LASTS
        made = SignInLinkResource(url=f"{request.base_url}sign-in/{secret}", expires_at=expires_at)
        claim.store_answer(session, 201, made, {}, box=answers)
    return made
