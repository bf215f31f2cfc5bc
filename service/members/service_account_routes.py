"""Service accounts of a tenant and their keys: programs' own, managed by owners, which stay when a member leaves."""

from datetime import datetime
from typing import Literal

from fastapi import APIRouter
from pydantic import BaseModel, Field, field_validator
from sqlalchemy import select, update
from sqlalchemy.exc import IntegrityError

from contract.strict import Strict
from service.app_state import Service
from service.authentication import KeysDb, Owner, Reader
from service.database.engine import clock, new_id
from service.http.pagination import Cursor, Limit, Page, page
from service.http.problems import invalid_field
from service.http.response_schemas import problems
from service.idempotency.repeated_requests import AnswerBox, ClaimedKey
from service.members.membership import lock_as_owner
from service.tenants.api_keys import Holder, announce_revocation, mint_key
from service.tenants.member_roles import Role, scopes_of
from service.tenants.models import ApiKey, ServiceAccount
from service.tenants.routes import KeyResource, Label, NameTaken, NewKey, refuse_past
from service.tenants.tenant_scope import find, scoped

router = APIRouter(prefix="/v1", tags=["members"], responses=problems(401, 403))


def _no_owner(role: Role) -> Role:
    if role is Role.OWNER:
        raise ValueError("may be viewer or editor: members are managed by people")
    return role


class NewServiceAccount(Strict):
    name: Label
    role: Role = Field(default=Role.EDITOR, description="viewer or editor")

    _role = field_validator("role")(_no_owner)


class ServiceAccountChange(Strict):
    role: Role = Field(description="viewer or editor; it bounds the keys that there are at once")

    _role = field_validator("role")(_no_owner)


class ServiceAccountResource(BaseModel):
    object: Literal["service_account"] = "service_account"
    id: str
    name: str
    role: Role
    created_at: datetime
    deleted_at: datetime | None

    @classmethod
    def of(cls, account: ServiceAccount) -> "ServiceAccountResource":
        return cls.model_validate(account, from_attributes=True)


@router.post(
    "/service-accounts",
    status_code=201,
    operation_id="create_service_account",
    summary="Make a service account",
    responses=problems(400, 409, 422),
)
def create_service_account(new: NewServiceAccount, owner: Owner, db: KeysDb, claim: ClaimedKey) -> ServiceAccountResource:
    account = ServiceAccount(id=new_id("account"), tenant_id=owner.tenant_id, name=new.name, role=new.role.value)
    try:
        with db.begin() as session:
            lock_as_owner(session, owner)
            session.add(account)
            session.flush()
            session.refresh(account)
            made = ServiceAccountResource.of(account)
            claim.store_answer(session, 201, made, {})
    except IntegrityError:
        raise NameTaken(f"There is already a service account called {new.name!r}.") from None
    return made


@router.get(
    "/service-accounts",
    operation_id="list_service_accounts",
    summary="List service accounts, the newest first",
    responses=problems(422),
)
def list_service_accounts(reader: Reader, db: KeysDb, cursor: Cursor = None, limit: Limit = 20) -> Page[ServiceAccountResource]:
    with db.begin() as session:
        found = scoped(select(ServiceAccount).where(ServiceAccount.deleted_at.is_(None)), ServiceAccount, reader)
        return page(session, found, ServiceAccount, cursor, limit, lambda rows: [ServiceAccountResource.of(a) for a in rows])


@router.patch(
    "/service-accounts/{account_id}",
    operation_id="change_service_account",
    summary="Change a service account's role",
    responses=problems(404, 422),
)
def change_service_account(
    account_id: str, change: ServiceAccountChange, owner: Owner, db: KeysDb, service: Service
) -> ServiceAccountResource:
    with db.begin() as session:
        lock_as_owner(session, owner)
        account = find(session, ServiceAccount, account_id, owner, "service account", lock=True)
        account.role = change.role.value
        announce_revocation(session)
        made = ServiceAccountResource.of(account)
    service.keys.forget()
    return made


@router.delete(
    "/service-accounts/{account_id}",
    operation_id="delete_service_account",
    summary="Delete a service account",
    description="Its keys end at once; what it made stays.",
    responses=problems(404),
)
def delete_service_account(account_id: str, owner: Owner, db: KeysDb, service: Service) -> ServiceAccountResource:
    with db.begin() as session:
        lock_as_owner(session, owner)
        account = find(session, ServiceAccount, account_id, owner, "service account", lock=True)
        account.deleted_at = clock(session)
        keys = update(ApiKey).where(ApiKey.service_account_id == account.id, ApiKey.revoked_at.is_(None))
        session.execute(keys.values(revoked_at=account.deleted_at))
        announce_revocation(session)
        gone = ServiceAccountResource.of(account)
    service.keys.forget()
    return gone


@router.post(
    "/service-accounts/{account_id}/keys",
    status_code=201,
    operation_id="create_service_account_key",
    summary="Give a service account a key",
    description="The answer holds the key in `secret`, which cannot be shown again. Left out, its scopes are all of the role.",
    responses=problems(400, 404, 409, 422),
)
def create_service_account_key(
    account_id: str, new: NewKey, owner: Owner, db: KeysDb, claim: ClaimedKey, answers: AnswerBox
) -> KeyResource:
    with db.begin() as session:
        lock_as_owner(session, owner)
        account = find(session, ServiceAccount, account_id, owner, "service account", lock=True)
        refuse_past(session, new.expires_at)
        role = Role(account.role)
        scopes = tuple(new.scopes) if "scopes" in new.model_fields_set else tuple(scopes_of(role))
        if beyond := [scope.value for scope in scopes if scope not in scopes_of(role)]:
            raise invalid_field("scopes", "beyond_role", f"holds {beyond[0]}, which the role {role} does not give")
        holder = Holder(role, "", service_account_id=account.id)
        key, secret = mint_key(session, owner.tenant_id, new.name, scopes, new.expires_at, new.requests_per_minute, holder)
        made = KeyResource.of(key, secret)
        claim.store_answer(session, 201, made, {}, box=answers)
    return made
