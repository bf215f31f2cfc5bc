"""Admin routes for tenants and their API keys."""

from datetime import datetime
from typing import Annotated, Literal

from fastapi import APIRouter
from pydantic import BaseModel, Field
from sqlalchemy import select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from contract.strict import LeftOut, Moment, Strict
from contract.task_spec import MAX_SLOWDOWN, MaxSlowdown
from service.app_state import QueueDep, Service
from service.authentication import AdminDb
from service.database.engine import clock, new_id
from service.http.pagination import Cursor, Limit, Page, page
from service.http.problems import Conflict, NotFound, invalid_field
from service.http.response_schemas import problems
from service.idempotency.repeated_requests import AdminClaimedKey, AnswerBox
from service.messaging.plan_requests import request_plan
from service.tenants.api_keys import Scope, announce_revocation, mint_key
from service.tenants.member_roles import Role
from service.tenants.models import QUEUED_TASKS, ApiKey, Tenant

router = APIRouter(prefix="/v1/admin", tags=["admin"], responses=problems(401, 403, 422))

Count = Annotated[int, Field(ge=0, le=2**31 - 1)]
Amount = Annotated[int, Field(ge=0, le=2**63 - 1)]
Weight = Annotated[float, Field(gt=0, le=1000)]
Label = Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[^\x00-\x1f]*$")]


_BOUND = f"How many times slower than alone its tasks may become beside others, unless they say; null: {MAX_SLOWDOWN:g}"


class NameTaken(Conflict):
    code = "name_taken"


class QuotaLimits(Strict):
    """Null is no limit."""

    running_gpus: Count | None = Field(
        default=None, description="GPUs of the fastest type at once, more of others; tasks beyond wait"
    )
    queued_tasks: Count | None = Field(default=QUEUED_TASKS, description="Tasks that have neither ended nor a node")
    stored_bytes: Amount | None = Field(default=None, description="Files, adapters, checkpoints of tasks that have not ended")
    month_tokens: Amount | None = Field(default=None, description="Trained since the first of the month, in UTC")

    @classmethod
    def of(cls, tenant: Tenant) -> "QuotaLimits":
        return cls(**{name: getattr(tenant, f"{name}_quota") for name in cls.model_fields})

    def give(self, tenant: Tenant) -> None:
        for name in type(self).model_fields:
            setattr(tenant, f"{name}_quota", getattr(self, name))


class NewTenant(Strict):
    name: Label
    weight: Weight = Field(default=1.0, description="Of its fair share")
    max_slowdown: MaxSlowdown | None = Field(default=None, description=_BOUND)
    quotas: QuotaLimits = QuotaLimits()


class TenantChange(Strict):
    """What is left out stays."""

    weight: LeftOut[Weight] = Field(default=None, description="Of its fair share")
    max_slowdown: MaxSlowdown | None = Field(default=None, description=f"{_BOUND}; null takes the tenant's away")
    quotas: LeftOut[QuotaLimits] = Field(default=None, description="All four; one that is left out gets its default")


class NewKey(Strict):
    name: Label = Field(default="key", description="To tell the key from others")
    scopes: Annotated[list[Scope], Field(min_length=1, max_length=3)] = Field(default=[Scope.READ, Scope.WRITE])
    expires_at: Moment | None = Field(default=None, description="Left out, the key works until it is revoked")
    requests_per_minute: Annotated[int, Field(ge=1, le=10_000_000)] | None = Field(
        default=None, description="Left out, the service's own limit"
    )


class TenantResource(BaseModel):
    object: Literal["tenant"] = "tenant"
    id: str
    name: str
    weight: float
    max_slowdown: float | None = Field(description=_BOUND)
    quotas: QuotaLimits
    created_at: datetime

    @classmethod
    def of(cls, tenant: Tenant) -> "TenantResource":
        quotas = QuotaLimits.of(tenant)
        return cls(
            id=tenant.id,
            name=tenant.name,
            weight=tenant.weight,
            max_slowdown=tenant.max_slowdown,
            quotas=quotas,
            created_at=tenant.created_at,
        )


class KeyResource(BaseModel):
    object: Literal["key"] = "key"
    id: str
    tenant_id: str
    name: str
    scopes: list[Scope]
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
    requests_per_minute: int | None
    role: Role | None = Field(description="Of a member's or service account's key: what it may do at most")
    user_id: str | None = Field(description="The member whose key it is")
    service_account_id: str | None
    secret: str | None = Field(default=None, description="The key itself; shown in the answer that makes it and never again")

    @classmethod
    def of(cls, key: ApiKey, secret: str | None = None) -> "KeyResource":
        said = {name: getattr(key, name) for name in cls.model_fields.keys() - {"object", "secret"}}
        return cls(**said, secret=secret)


@router.post("/tenants", status_code=201, operation_id="create_tenant", summary="Make a tenant", responses=problems(409))
def create_tenant(new: NewTenant, db: AdminDb, claim: AdminClaimedKey) -> TenantResource:
    tenant = Tenant(id=new_id("tenant"), name=new.name, weight=new.weight, max_slowdown=new.max_slowdown)
    new.quotas.give(tenant)
    try:
        with db.begin() as session:
            session.add(tenant)
            session.flush()
            session.refresh(tenant)
            made = TenantResource.of(tenant)
            claim.store_answer(session, 201, made, {})
    except IntegrityError:
        raise NameTaken(f"There is already a tenant called {new.name!r}.") from None
    return made


@router.get("/tenants", operation_id="list_tenants", summary="List tenants, the newest first")
def list_tenants(db: AdminDb, cursor: Cursor = None, limit: Limit = 20) -> Page[TenantResource]:
    with db.begin() as session:
        return page(session, select(Tenant), Tenant, cursor, limit, lambda rows: [TenantResource.of(t) for t in rows])


@router.patch(
    "/tenants/{tenant_id}",
    operation_id="change_tenant",
    summary="Change a tenant's weight, default bound or quotas",
    description="A quota below what is used takes nothing away: it keeps more from coming.",
    responses=problems(404),
)
def change_tenant(tenant_id: str, change: TenantChange, db: AdminDb, queue: QueueDep) -> TenantResource:
    with db.begin() as session:
        tenant = tenant_row(session, tenant_id, lock=True)
        if change.weight is not None:
            tenant.weight = change.weight
        if "max_slowdown" in change.model_fields_set:
            tenant.max_slowdown = change.max_slowdown
        if change.quotas is not None:
            change.quotas.give(tenant)
        request_plan(session, queue, "tenant_changed")
    return TenantResource.of(tenant)


@router.post(
    "/tenants/{tenant_id}/keys",
    status_code=201,
    operation_id="create_key",
    summary="Give a tenant a key",
    description="The answer holds the key in `secret`. It is not stored and cannot be shown again.",
    responses=problems(404, 409),
)
def create_key(tenant_id: str, new: NewKey, db: AdminDb, claim: AdminClaimedKey, answers: AnswerBox) -> KeyResource:
    with db.begin() as session:
        tenant_row(session, tenant_id)
        refuse_past(session, new.expires_at)
        key, secret = mint_key(session, tenant_id, new.name, tuple(new.scopes), new.expires_at, new.requests_per_minute)
        made = KeyResource.of(key, secret)
        claim.store_answer(session, 201, made, {}, box=answers)
    return made


@router.get(
    "/tenants/{tenant_id}/keys",
    operation_id="list_keys",
    summary="List a tenant's keys, the newest first",
    responses=problems(404),
)
def list_keys(tenant_id: str, db: AdminDb, cursor: Cursor = None, limit: Limit = 20) -> Page[KeyResource]:
    with db.begin() as session:
        tenant_row(session, tenant_id)
        keys = select(ApiKey).where(ApiKey.tenant_id == tenant_id, ApiKey.for_sessions.is_(False))
        return page(session, keys, ApiKey, cursor, limit, lambda rows: [KeyResource.of(k) for k in rows])


@router.delete(
    "/keys/{key_id}",
    operation_id="revoke_key",
    summary="Revoke a key",
    description="Every process of the service refuses it within seconds. A key that is revoked already stays as it is.",
    responses=problems(404),
)
def revoke_key(key_id: str, db: AdminDb, service: Service) -> KeyResource:
    with db.begin() as session:
        key = session.get(ApiKey, key_id, with_for_update=True)
        if key is None:
            raise NotFound(f"There is no key {key_id!r}.")
        revoke(session, key)
    service.keys.forget()
    return KeyResource.of(key)


def refuse_past(session: Session, expires_at: datetime | None) -> None:
    """Raises Invalid for a key that would have expired already."""
    if expires_at is not None and expires_at <= clock(session):
        raise invalid_field("expires_at", "in_the_past", "lies in the past")


def revoke(session: Session, key: ApiKey) -> None:
    """From now on it is refused; one that was revoked before keeps its moment."""
    if key.revoked_at is None:
        key.revoked_at = clock(session)
        announce_revocation(session)


def tenant_row(session: Session, tenant_id: str, *, lock: bool = False) -> Tenant:
    """Raises NotFound."""
    tenant = session.get(Tenant, tenant_id, with_for_update=lock)
    if tenant is None:
        raise NotFound(f"There is no tenant {tenant_id!r}.")
    return tenant
