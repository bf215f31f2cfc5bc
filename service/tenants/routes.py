"""Tenants and their keys, for admins."""

from datetime import datetime
from typing import Annotated, Literal

from fastapi import APIRouter
from pydantic import AwareDatetime, BaseModel, Field
from sqlalchemy import func, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from contract.base import Strict
from service.answers import problems
from service.db import new_id
from service.errors import Conflict, NotFound, invalid_field
from service.pages import Cursor, Limit, Page, page
from service.state import Db
from service.tenants.auth import Admin
from service.tenants.keys import Scope, mint_key
from service.tenants.models import ApiKey, Tenant

router = APIRouter(prefix="/v1/admin", tags=["admin"], responses=problems(401, 403, 422))

Label = Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[^\x00-\x1f]*$")]


class NameTaken(Conflict):
    code = "name_taken"


class NewTenant(Strict):
    name: Label
    weight: Annotated[float, Field(gt=0, le=1000)] = Field(default=1.0, description="Of its fair share")


class NewKey(Strict):
    name: Label = Field(default="key", description="To tell the key from others")
    scopes: Annotated[list[Scope], Field(min_length=1, max_length=3)] = Field(default=[Scope.READ, Scope.WRITE])
    expires_at: AwareDatetime | None = Field(default=None, description="Left out, the key works until it is revoked")


class TenantResource(BaseModel):
    object: Literal["tenant"] = "tenant"
    id: str
    name: str
    weight: float
    created_at: datetime

    @classmethod
    def of(cls, tenant: Tenant) -> "TenantResource":
        return cls(id=tenant.id, name=tenant.name, weight=tenant.weight, created_at=tenant.created_at)


class KeyResource(BaseModel):
    object: Literal["key"] = "key"
    id: str
    tenant_id: str
    name: str
    scopes: list[Scope]
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
    secret: str | None = Field(default=None, description="The key itself; shown in the answer that makes it and never again")

    @classmethod
    def of(cls, key: ApiKey, secret: str | None = None) -> "KeyResource":
        return cls(
            id=key.id,
            tenant_id=key.tenant_id,
            name=key.name,
            scopes=[Scope(s) for s in key.scopes],
            created_at=key.created_at,
            expires_at=key.expires_at,
            revoked_at=key.revoked_at,
            secret=secret,
        )


@router.post("/tenants", status_code=201, operation_id="create_tenant", summary="Make a tenant", responses=problems(409))
def create_tenant(new: NewTenant, admin: Admin, db: Db) -> TenantResource:
    tenant = Tenant(id=new_id("tenant"), name=new.name, weight=new.weight)
    try:
        with db.begin() as session:
            session.add(tenant)
            session.flush()
            session.refresh(tenant)
    except IntegrityError:
        raise NameTaken(f"There is already a tenant called {new.name!r}.") from None
    return TenantResource.of(tenant)


@router.get("/tenants", operation_id="list_tenants", summary="List tenants, the newest first")
def list_tenants(admin: Admin, db: Db, cursor: Cursor = None, limit: Limit = 20) -> Page[TenantResource]:
    with db.begin() as session:
        return page(session, select(Tenant), Tenant, cursor, limit, lambda rows: [TenantResource.of(t) for t in rows])


@router.post(
    "/tenants/{tenant_id}/keys",
    status_code=201,
    operation_id="create_key",
    summary="Give a tenant a key",
    description="The answer holds the key in `secret`. It is not stored and cannot be shown again.",
    responses=problems(404),
)
def create_key(tenant_id: str, new: NewKey, admin: Admin, db: Db) -> KeyResource:
    with db.begin() as session:
        _require_tenant(session, tenant_id)
        if new.expires_at is not None and new.expires_at <= session.scalars(select(func.clock_timestamp())).one():
            raise invalid_field("expires_at", "in_the_past", "lies in the past")
        key, secret = mint_key(session, tenant_id, new.name, tuple(new.scopes), new.expires_at)
    return KeyResource.of(key, secret)


@router.get(
    "/tenants/{tenant_id}/keys",
    operation_id="list_keys",
    summary="List a tenant's keys, the newest first",
    responses=problems(404),
)
def list_keys(tenant_id: str, admin: Admin, db: Db, cursor: Cursor = None, limit: Limit = 20) -> Page[KeyResource]:
    with db.begin() as session:
        _require_tenant(session, tenant_id)
        keys = select(ApiKey).where(ApiKey.tenant_id == tenant_id)
        return page(session, keys, ApiKey, cursor, limit, lambda rows: [KeyResource.of(k) for k in rows])


@router.delete(
    "/keys/{key_id}",
    operation_id="revoke_key",
    summary="Revoke a key at once",
    description="A key that is revoked already stays as it is.",
    responses=problems(404),
)
def revoke_key(key_id: str, admin: Admin, db: Db) -> KeyResource:
    with db.begin() as session:
        key = session.get(ApiKey, key_id, with_for_update=True)
        if key is None:
            raise NotFound(f"There is no key {key_id!r}.")
        if key.revoked_at is None:
            key.revoked_at = session.scalars(select(func.clock_timestamp())).one()
    return KeyResource.of(key)


def _require_tenant(session: Session, tenant_id: str) -> None:
    if session.get(Tenant, tenant_id) is None:
        raise NotFound(f"There is no tenant {tenant_id!r}.")
