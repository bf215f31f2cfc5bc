"""A tenant's members, invitations and service accounts, and the account of who looks."""

from datetime import UTC, datetime

from fastapi import Request, Response
from fastapi.responses import RedirectResponse

from service.app_state import Service
from service.authentication import KeysDb, Owner, Reader
from service.http.problems import Forbidden
from service.idempotency.repeated_requests import AnswerBox, ClaimedKey
from service.members import invitation_routes, member_routes, service_account_routes
from service.members.service_account_routes import NewServiceAccount
from service.tenants.api_keys import Principal
from service.tenants.browser_sessions import is_members_own
from service.tenants.member_roles import Role
from service.tenants.routes import NewKey
from service.web.forms import Form, read_as
from service.web.page_route import SIGN_IN, pages
from service.web.rendering import render
from service.web.session.viewer import Looking

router = pages()

_SHOWN = 100


class NoAccount(Forbidden):
    code, title = "no_account", "Nobody is signed in"


@router.get("/members")
def show_members(viewer: Looking, reader: Reader, db: KeysDb, request: Request) -> Response:
    return _page(request, reader, db)


@router.post("/members/invitations")
def invite(
    viewer: Looking, owner: Owner, db: KeysDb, form: Form, request: Request, claim: ClaimedKey, answers: AnswerBox
) -> Response:
    new = read_as(invitation_routes.NewInvitation, role=form.one("role"), email=form.one("email").strip() or None)
    made = invitation_routes.create_invitation(new, owner, db, request, claim, answers)
    return _page(request, owner, db, made.url, f"The invitation of {made.email or 'whoever has this link'}")


@router.post("/members/invitations/{invitation_id}/revoke")
def take_invitation_back(invitation_id: str, owner: Owner, db: KeysDb) -> Response:
    invitation_routes.revoke_invitation(invitation_id, owner, db)
    return _back()


@router.post("/members/{user_id}/role")
def change_role(user_id: str, owner: Owner, db: KeysDb, form: Form, service: Service) -> Response:
    change = read_as(member_routes.MemberChange, role=form.one("role"))
    member_routes.change_member(user_id, change, owner, db, service)
    return _back()


@router.post("/members/{user_id}/remove")
def remove(user_id: str, owner: Owner, db: KeysDb, service: Service) -> Response:
    member_routes.remove_member(user_id, owner, db, service)
    return RedirectResponse(SIGN_IN, 303) if user_id == owner.user_id else _back()


@router.post("/members/service-accounts")
def create_service_account(owner: Owner, db: KeysDb, form: Form, claim: ClaimedKey) -> Response:
    new = read_as(NewServiceAccount, name=form.one("name"), role=form.one("role"))
    service_account_routes.create_service_account(new, owner, db, claim)
    return _back()


@router.post("/members/service-accounts/{account_id}/keys")
def create_service_account_key(
    account_id: str, viewer: Looking, owner: Owner, db: KeysDb, request: Request, claim: ClaimedKey, answers: AnswerBox
) -> Response:
    made = service_account_routes.create_service_account_key(account_id, NewKey(), owner, db, claim, answers)
    return _page(request, owner, db, made.secret, "The new key")


@router.post("/members/service-accounts/{account_id}/delete")
def delete_service_account(account_id: str, owner: Owner, db: KeysDb, service: Service) -> Response:
    service_account_routes.delete_service_account(account_id, owner, db, service)
    return _back()


@router.get("/account")
def show_account(viewer: Looking, reader: Reader, db: KeysDb, request: Request) -> Response:
    with db.begin() as session:
        chooses = is_members_own(session, reader)
    return render(request, "account.html", me=member_routes.get_me(reader, db), chooses=chooses)


@router.post("/account/sign-out-everywhere")
def sign_out_everywhere(reader: Reader, db: KeysDb, service: Service) -> Response:
    member_routes.end_member_sessions(_user(reader), reader, db, service)
    return RedirectResponse(SIGN_IN, 303)


@router.post("/account/leave")
def leave(reader: Reader, db: KeysDb, service: Service) -> Response:
    member_routes.remove_member(_user(reader), reader, db, service)
    return RedirectResponse(SIGN_IN, 303)


def _page(request: Request, reader: Principal, db: KeysDb, secret: str | None = None, what: str | None = None) -> Response:
    is_owner = reader.role is Role.OWNER
    answer = render(
        request,
        "members.html",
        members=member_routes.list_members(reader, db, None, _SHOWN).data,
        invitations=invitation_routes.list_invitations(reader, db, None, 20).data if is_owner else [],
        accounts=service_account_routes.list_service_accounts(reader, db, None, _SHOWN).data,
        roles=list(Role),
        secret=secret,
        what=what,
        now=datetime.now(UTC),
    )
    if secret is not None:
        answer.headers["Cache-Control"] = "no-store"
    return answer


def _user(reader: Principal) -> str:
    if reader.user_id is None:
        raise NoAccount("This session stands for a key, and for no member.")
    return reader.user_id


def _back() -> Response:
    return RedirectResponse("/members", 303)
