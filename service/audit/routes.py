"""Audit log routes: a tenant's own entries, and all tenants' for admins."""

from datetime import datetime
from typing import Annotated, Literal

from fastapi import APIRouter, Query
from pydantic import BaseModel, Field
from sqlalchemy import select

from service.audit.models import AuditEntry
from service.authentication import AdminDb, Db, Reader
from service.http.pagination import Cursor, Limit, Page, page
from service.http.response_schemas import problems
from service.tenants.tenant_scope import scoped

router = APIRouter(prefix="/v1", responses=problems(401, 403, 422))

Action = Annotated[str | None, Query(max_length=64, description="Only this operation, such as cancel_task")]


class AuditResource(BaseModel):
    """One request that wrote something, or read an adapter."""

    object: Literal["audit_entry"] = "audit_entry"
    id: str
    tenant_id: str
    key_id: str
    user_id: str | None = Field(description="The member whose key or session it was")
    actor: str | None = Field(description="The member's address, or the service account's name, as it was then")
    action: str = Field(description="The operation's id in this document")
    targets: list[str] = Field(description="What the path named, then what was made")
    request_id: str = Field(description="As in the answer's x-request-id, and in the logs")
    created_at: datetime

    @classmethod
    def of(cls, entry: AuditEntry) -> "AuditResource":
        return cls.model_validate(entry, from_attributes=True)


@router.get("/audit", tags=["audit"], operation_id="list_audit", summary="List who did what in this tenant, the newest first")
def list_audit(reader: Reader, db: Db, action: Action = None, cursor: Cursor = None, limit: Limit = 20) -> Page[AuditResource]:
    with db.begin() as session:
        entries = scoped(select(AuditEntry), AuditEntry, reader)
        if action is not None:
            entries = entries.where(AuditEntry.action == action)
        return page(session, entries, AuditEntry, cursor, limit, lambda rows: [AuditResource.of(e) for e in rows])


@router.get("/admin/audit", tags=["admin"], operation_id="list_all_audit", summary="List who did what, the newest first")
def list_all_audit(
    db: AdminDb,
    tenant_id: Annotated[str | None, Query(max_length=64, description="Only the keys of this tenant")] = None,
    action: Action = None,
    cursor: Cursor = None,
    limit: Limit = 20,
) -> Page[AuditResource]:
    with db.begin() as session:
        entries = select(AuditEntry)
        if tenant_id is not None:
            entries = entries.where(AuditEntry.tenant_id == tenant_id)
        if action is not None:
            entries = entries.where(AuditEntry.action == action)
        return page(session, entries, AuditEntry, cursor, limit, lambda rows: [AuditResource.of(e) for e in rows])
