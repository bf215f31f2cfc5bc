"""Admin routes for the members of any tenant: its first owner is invited here, and a lost one replaced."""

from datetime import timedelta

from fastapi import APIRouter, Request
from sqlalchemy import select

from service.app_state import Service, public_url
from service.authentication import Admin, AdminDb
from service.http.pagination import Cursor, Limit, Page
from service.http.response_schemas import problems
from service.idempotency.repeated_requests import AdminClaimedKey, AnswerBox
from service.members.invitation_routes import InvitationResource, NewInvitation
from service.members.invitations import invite
from service.members.member_routes import MemberResource, page_of
from service.members.membership import end_membership
from service.tenants.models import Membership, User
from service.tenants.routes import tenant_row

router = APIRouter(prefix="/v1/admin/tenants/{tenant_id}", tags=["admin"], responses=problems(401, 403, 404, 422))


@router.post(
    "/invitations",
    status_code=201,
    operation_id="create_invitation_of",
    summary="Invite somebody into a tenant, such as its first owner",
    description="The answer holds the link in `url`. It works once, and cannot be shown again.",
    responses=problems(409),
)
def create_invitation_of(
    tenant_id: str, new: NewInvitation, admin: Admin, db: AdminDb, request: Request, claim: AdminClaimedKey, answers: AnswerBox
) -> InvitationResource:
    with db.begin() as session:
        tenant_row(session, tenant_id)
        lasts = timedelta(hours=new.expires_in_hours)
        invitation, secret = invite(session, tenant_id, new.role, new.email, admin, lasts)
        made = InvitationResource.of(invitation, public_url(request, f"invitations/{secret}"))
        claim.store_answer(session, 201, made, {}, box=answers)
    return made


@router.get("/members", operation_id="list_members_of", summary="List a tenant's members, the newest first")
def list_members_of(tenant_id: str, db: AdminDb, cursor: Cursor = None, limit: Limit = 20) -> Page[MemberResource]:
    with db.begin() as session:
        tenant_row(session, tenant_id)
        return page_of(session, select(Membership).where(Membership.tenant_id == tenant_id), cursor, limit)


@router.delete(
    "/members/{user_id}",
    operation_id="remove_member_of",
    summary="Remove a member of any tenant, the last owner too",
    description="Their keys and sessions in that tenant end at once.",
)
def remove_member_of(tenant_id: str, user_id: str, db: AdminDb, service: Service) -> MemberResource:
    with db.begin() as session:
        tenant_row(session, tenant_id)
        member = end_membership(session, tenant_id, user_id, by_platform=True)
        gone = MemberResource.of(member, session.get_one(User, user_id))
    service.keys.forget()
    return gone
