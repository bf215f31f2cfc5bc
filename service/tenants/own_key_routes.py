"""Routes for a tenant's own API keys, and for links that sign a browser in. No key makes one that may do more than itself."""

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Literal

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field
from sqlalchemy import select

from service.app_state import Config, Service, public_url
from service.authentication import KeyRefused, KeysDb, MemberOrWriter, Reader, ScopeMissing, require_owner, require_scope
from service.database.engine import clock
from service.http.pagination import Cursor, Limit, Page, page
from service.http.problems import invalid_field
from service.http.response_schemas import problems
from service.idempotency.repeated_requests import AnswerBox, MemberClaimedKey, ReaderClaimedKey
from service.members.membership import hold_off_changes
from service.tenants.api_keys import Holder, Principal, mint_key
from service.tenants.browser_sessions import LINK_LASTS, make_link
from service.tenants.member_roles import Role, RoleMissing, Scope, lower
from service.tenants.models import ApiKey
from service.tenants.routes import KeyResource, NewKey, refuse_past, revoke
from service.tenants.tenant_scope import find, scoped

router = APIRouter(prefix="/v1", tags=["keys"], responses=problems(401, 403))


class SignInLinkResource(BaseModel):
    object: Literal["sign_in_link"] = "sign_in_link"
    url: str = Field(description="Opens a browser session of this key, once")
    expires_at: datetime


@router.get("/keys", operation_id="list_own_keys", summary="List this tenant's keys, the newest first", responses=problems(422))
def list_own_keys(reader: Reader, db: KeysDb, cursor: Cursor = None, limit: Limit = 20) -> Page[KeyResource]:
    with db.begin() as session:
        keys = scoped(select(ApiKey).where(ApiKey.for_sessions.is_(False)), ApiKey, reader)
        return page(session, keys, ApiKey, cursor, limit, lambda rows: [KeyResource.of(k) for k in rows])


class NewOwnKey(NewKey):
    role: Role | None = Field(
        default=None,
        description="Of a member's key, their own at most. Left out, editor at most: only an owner's role manages members",
    )


@router.post(
    "/keys",
    status_code=201,
    operation_id="create_own_key",
    summary="Make another key of this tenant, or of this member",
    description=(
        "The answer holds the key in `secret`, which cannot be shown again. It may have no scope that the calling key lacks, "
        "lasts no longer, and sends no more requests a minute: what is left out is as in the calling key. A member's key or "
        "session makes keys of that member: they may what the member may, end with the membership, and expire."
    ),
    responses=problems(400, 409, 422),
)
def create_own_key(
    new: NewOwnKey, maker: MemberOrWriter, db: KeysDb, config: Config, claim: MemberClaimedKey, answers: AnswerBox
) -> KeyResource:
    holder, scopes = _holder_of(new, maker), tuple(new.scopes)
    if maker.holder is not None and "scopes" not in new.model_fields_set:
        scopes = tuple(scope for scope in scopes if scope in maker.scopes)
    beyond = [scope.value for scope in scopes if scope not in maker.scopes]
    if beyond:
        raise ScopeMissing(f"This key lacks the scope {beyond[0]!r}, so it cannot give it to another.", needs=beyond[0])
    with db.begin() as session:
        hold_off_changes(session, maker.tenant_id)  # first, as a removal locks the tenant before it revokes keys
        own = session.get_one(ApiKey, maker.key_id, with_for_update={"read": True})
        if own.revoked_at is not None:  # since the request was authorized: another key would be a way back
            raise KeyRefused("The API key was revoked just now, so it makes no other.", reason="revoked")
        refuse_past(session, new.expires_at)
        longest = clock(session) + timedelta(days=config.personal_key_days) if maker.user_id is not None else None
        expires_at = min((moment for moment in (new.expires_at, own.expires_at, longest) if moment is not None), default=None)
        rates = [rate for rate in (new.requests_per_minute, own.requests_per_minute) if rate is not None]
        key, secret = mint_key(session, maker.tenant_id, new.name, scopes, expires_at, min(rates, default=None), holder)
        made = KeyResource.of(key, secret)
        claim.store_answer(session, 201, made, {}, box=answers)
    return made


def _holder_of(new: NewOwnKey, maker: Principal) -> Holder | None:
    """Whose the new key is: the maker's own. Raises Invalid where the maker has no role, RoleMissing beyond theirs."""
    if maker.holder is None:
        if new.role is not None:
            raise invalid_field("role", "no_member", "is for members' keys; those of the tenant itself have scopes")
        return None
    role = new.role or lower(maker.holder.role, Role.EDITOR)
    if lower(role, maker.holder.role) is not role:
        raise RoleMissing(f"The caller is {maker.holder.role}, so its key cannot be {role}.", needs=role.value)
    return replace(maker.holder, role=role)


@router.delete(
    "/keys/{key_id}",
    operation_id="revoke_own_key",
    summary="Revoke one of this tenant's keys",
    description=(
        "Every process of the service refuses it, and its browser sessions, at once. Members revoke their own keys, owners "
        "everybody's; what belongs to no member, whoever may write."
    ),
    responses=problems(404),
)
def revoke_own_key(key_id: str, maker: MemberOrWriter, db: KeysDb, service: Service) -> KeyResource:
    with db.begin() as session:
        key = find(session, ApiKey, key_id, maker, "key", lock=True)
        own = key.user_id is not None and key.user_id == maker.user_id
        if not own:
            require_scope(Scope.WRITE, maker)
        if key.role is not None and not own:
            require_owner(maker)
        beyond = [scope for scope in key.scopes if scope not in maker.scopes and not own]
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
        made = SignInLinkResource(url=public_url(request, f"sign-in/{secret}"), expires_at=expires_at)
        claim.store_answer(session, 201, made, {}, box=answers)
    return made
