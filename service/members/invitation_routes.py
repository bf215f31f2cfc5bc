"""Invitations of a tenant: made, listed and taken back by owners."""

from datetime import datetime, timedelta
from typing import Annotated, Literal

from fastapi import APIRouter, Request
from pydantic import AfterValidator, BaseModel, Field
from sqlalchemy import select

from contract.strict import Strict
from service.app_state import public_url
from service.authentication import KeysDb, Owner, ReadingOwner
from service.http.pagination import Cursor, Limit, Page, page
from service.http.response_schemas import problems
from service.idempotency.repeated_requests import AnswerBox, ClaimedKey
from service.members.invitations import LASTS, invite, take_back
from service.members.membership import lock_as_owner
from service.tenants.member_roles import Role
from service.tenants.models import Invitation
from service.tenants.tenant_scope import find, scoped

router = APIRouter(prefix="/v1", tags=["members"], responses=problems(401, 403))


def _address(text: str) -> str:
    """Whether somebody could have this address; who has it says the identity provider."""
    local, at, domain = text.rpartition("@")
    if not (at and local and domain) or any(not letter.isprintable() or letter in " <>,;" for letter in text):
        raise ValueError("must be one e-mail address, such as ada@example.com")
    return text


class NewInvitation(Strict):
    role: Role = Role.EDITOR
    email: Annotated[str, Field(max_length=320), AfterValidator(_address)] | None = Field(
        default=None,
        description="Who joins must sign in with this address, verified by the provider. Left out: whoever has the link",
    )
    expires_in_hours: Annotated[float, Field(gt=0, le=24 * 30)] = Field(default=LASTS / timedelta(hours=1))


class InvitationResource(BaseModel):
    object: Literal["invitation"] = "invitation"
    id: str
    tenant_id: str
    role: Role
    email: str | None
    invited_by: str
    created_at: datetime
    expires_at: datetime
    accepted_at: datetime | None
    accepted_by: str | None = Field(description="The user who joined with it")
    revoked_at: datetime | None
    url: str | None = Field(
        default=None, description="The link to hand over; shown in the answer that makes it and never again"
    )

    @classmethod
    def of(cls, invitation: Invitation, url: str | None = None) -> "InvitationResource":
        said = {name: getattr(invitation, name) for name in cls.model_fields.keys() - {"object", "url"}}
        return cls(**said, url=url)


@router.post(
    "/invitations",
    status_code=201,
    operation_id="create_invitation",
    summary="Invite somebody",
    description="The answer holds the link in `url`. It works once, and cannot be shown again. Motet sends no message.",
    responses=problems(400, 409, 422),
)
def create_invitation(
    new: NewInvitation, owner: Owner, db: KeysDb, request: Request, claim: ClaimedKey, answers: AnswerBox
) -> InvitationResource:
    with db.begin() as session:
        lasts = timedelta(hours=new.expires_in_hours)
        invitation, secret = invite(session, owner.tenant_id, new.role, new.email, owner, lasts)
        made = InvitationResource.of(invitation, public_url(request, f"invitations/{secret}"))
        claim.store_answer(session, 201, made, {}, box=answers)
    return made


@router.get(
    "/invitations", operation_id="list_invitations", summary="List invitations, the newest first", responses=problems(422)
)
def list_invitations(owner: ReadingOwner, db: KeysDb, cursor: Cursor = None, limit: Limit = 20) -> Page[InvitationResource]:
    with db.begin() as session:
        found = scoped(select(Invitation), Invitation, owner)
        return page(session, found, Invitation, cursor, limit, lambda rows: [InvitationResource.of(one) for one in rows])


@router.delete(
    "/invitations/{invitation_id}",
    operation_id="revoke_invitation",
    summary="Take an invitation back",
    responses=problems(404, 409),
)
def revoke_invitation(invitation_id: str, owner: Owner, db: KeysDb) -> InvitationResource:
    with db.begin() as session:
        lock_as_owner(session, owner)
        invitation = find(session, Invitation, invitation_id, owner, "invitation", lock=True)
        take_back(session, invitation)
        return InvitationResource.of(invitation)
