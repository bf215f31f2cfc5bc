"""Who calls, and the members of a tenant: listed for all of them, managed by owners."""

from collections.abc import Sequence
from datetime import datetime
from typing import Literal

from fastapi import APIRouter
from pydantic import BaseModel, Field
from sqlalchemy import Select, select
from sqlalchemy.orm import Session

from contract.strict import Strict
from service.app_state import Service
from service.authentication import KeysDb, MemberOrWriter, Owner, Reader, require_owner
from service.http.pagination import Cursor, Limit, Page, page
from service.http.response_schemas import problems
from service.members.membership import change_role, end_membership, lock_as_owner, sign_out, users_of
from service.members.tenant_entry import places_of
from service.tenants.api_keys import Principal
from service.tenants.member_roles import Role, Scope
from service.tenants.models import ApiKey, Membership, Tenant, User
from service.tenants.tenant_scope import scoped

router = APIRouter(prefix="/v1", tags=["members"], responses=problems(401, 403))


class MemberResource(BaseModel):
    object: Literal["member"] = "member"
    user_id: str
    role: Role
    email: str | None = Field(description="Only where the identity provider says that it is verified")
    name: str | None
    created_at: datetime = Field(description="When they joined")
    signed_in_at: datetime = Field(description="Into this tenant, for the last time")

    @classmethod
    def of(cls, member: Membership, user: User) -> "MemberResource":
        return cls(
            user_id=user.id,
            role=Role(member.role),
            email=user.email,
            name=user.name,
            created_at=member.created_at,
            signed_in_at=member.signed_in_at,
        )


class MemberChange(Strict):
    role: Role


class MyTenant(BaseModel):
    id: str
    name: str
    role: Role | None = Field(
        description="Null where the caller is no member: a key of the tenant itself, or a service account"
    )


class Me(BaseModel):
    """The caller: the key's rights, and whom it belongs to."""

    object: Literal["me"] = "me"
    tenant_id: str
    tenant: str = Field(description="Its name")
    key_id: str
    key: str = Field(description="Its name")
    scopes: list[Scope] = Field(description="Those of the key that its holder's role allows")
    expires_at: datetime | None = Field(description="When the key ends")
    role: Role | None = Field(description="Of the member or service account; null for a key of the tenant itself")
    user_id: str | None
    service_account_id: str | None
    label: str | None = Field(description="How the audit log names the member or service account")
    tenants: list[MyTenant] = Field(description="All that the member belongs to")


@router.get("/me", operation_id="get_me", summary="Who calls, and what they may do")
def get_me(reader: Reader, db: KeysDb) -> Me:
    holder = reader.holder
    with db.begin() as session:
        tenant, key = session.get_one(Tenant, reader.tenant_id), session.get_one(ApiKey, reader.key_id)
        tenants = [MyTenant(id=tenant.id, name=tenant.name, role=None)]
        if reader.user_id is not None:
            tenants = [MyTenant(id=one.tenant_id, name=one.name, role=one.role) for one in places_of(session, reader.user_id)]
    return Me(
        tenant_id=tenant.id,
        tenant=tenant.name,
        key_id=key.id,
        key=key.name,
        scopes=[scope for scope in Scope if scope in reader.scopes],
        expires_at=key.expires_at,
        role=reader.role,
        user_id=reader.user_id,
        service_account_id=None if holder is None else holder.service_account_id,
        label=None if holder is None else holder.label,
        tenants=tenants,
    )


@router.get(
    "/members", operation_id="list_members", summary="List the tenant's members, the newest first", responses=problems(422)
)
def list_members(reader: Reader, db: KeysDb, cursor: Cursor = None, limit: Limit = 20) -> Page[MemberResource]:
    with db.begin() as session:
        return page_of(session, scoped(select(Membership), Membership, reader), cursor, limit)


def page_of(session: Session, members: Select[Membership], cursor: str | None, limit: int) -> Page[MemberResource]:
    """These members with their users."""

    def render(members: Sequence[Membership]) -> list[MemberResource]:
        users = users_of(session, members)
        return [MemberResource.of(one, users[one.user_id]) for one in members]

    return page(session, members, Membership, cursor, limit, render)


@router.patch(
    "/members/{user_id}",
    operation_id="change_member",
    summary="Change a member's role",
    description="It bounds all keys and sessions of the member at once. The last owner stays owner.",
    responses=problems(404, 409, 422),
)
def change_member(user_id: str, change: MemberChange, owner: Owner, db: KeysDb, service: Service) -> MemberResource:
    with db.begin() as session:
        lock_as_owner(session, owner)
        member = change_role(session, owner.tenant_id, user_id, change.role)
        made = MemberResource.of(member, session.get_one(User, user_id))
    service.keys.forget()
    return made


@router.delete(
    "/members/{user_id}",
    operation_id="remove_member",
    summary="Remove a member, or leave",
    description=(
        "Their keys and sessions in this tenant end at once; what they made stays. Owners remove everybody, others "
        "themselves. The last owner stays."
    ),
    responses=problems(404, 409),
)
def remove_member(user_id: str, caller: MemberOrWriter, db: KeysDb, service: Service) -> MemberResource:
    with db.begin() as session:
        _may_change(session, caller, user_id)
        member = end_membership(session, caller.tenant_id, user_id)
        gone = MemberResource.of(member, session.get_one(User, user_id))
    service.keys.forget()
    return gone


@router.delete(
    "/members/{user_id}/sessions",
    operation_id="end_member_sessions",
    summary="Sign a member's browsers out",
    description="Of this tenant. Owners may do so for everybody, others for themselves. Keys stay.",
    responses=problems(404),
    status_code=204,
)
def end_member_sessions(user_id: str, caller: MemberOrWriter, db: KeysDb, service: Service) -> None:
    with db.begin() as session:
        _may_change(session, caller, user_id)
        sign_out(session, caller.tenant_id, user_id)
    service.keys.forget()


def _may_change(session: Session, caller: Principal, user_id: str) -> None:
    """Raises RoleMissing for who is neither an owner nor that member."""
    if user_id != caller.user_id:
        lock_as_owner(session, require_owner(caller))
