"""Pages that sign in by the identity provider: there, back, by invitation; and from one tenant to another.

The cookie of a sign-in under way is SameSite=Lax, since the provider's redirect comes from another site, where browsers send no
Strict cookie. It opens nothing: it holds what the answer is compared with, sealed, for ten minutes, and goes to /oidc alone.
The session's own cookie stays Strict, so the callback answers with a page that goes on by itself, and not with a redirect.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

from anyio import to_thread
from fastapi import Request, Response
from fastapi.responses import RedirectResponse
from starlette.concurrency import run_in_threadpool

from service.app_state import State, public_url, state_of
from service.authentication import SESSION_COOKIE, Reader
from service.http.middleware import request_id
from service.http.problems import Problem
from service.members.device_routes import NoSignIn
from service.members.invitations import InvitationOver, open_invitation
from service.members.tenant_entry import NoTenant, admit, enter, note_sign_in, places_of
from service.oidc import authorization_code
from service.oidc.authorization_code import PendingSignIn
from service.oidc.identity import Identity, SignInRefused
from service.oidc.provider import Provider
from service.secret_box import SecretBox
from service.tenants.api_keys import Principal
from service.tenants.auth_throttle import address_of
from service.tenants.browser_sessions import close_session, is_members_own, open_session
from service.tenants.member_roles import Role, RoleMissing
from service.tenants.models import Tenant
from service.web.forms import Form
from service.web.page_route import pages
from service.web.rendering import render
from service.web.session.sign_in import HOME, opened, within

router = pages()

COOKIE, _PATH, _CALLBACK = "motet_oidc", "/oidc", "oidc/callback"


@router.get("/oidc/sign-in")
async def begin(request: Request, next: str = HOME) -> Response:
    address, pending = await _begun(request, within(next))
    return _remembering(request, RedirectResponse(address, 303, {"Cache-Control": "no-store"}), pending)


@router.get("/oidc/callback")
async def come_back(request: Request, state: str = "", code: str = "", error: str = "", iss: str | None = None) -> Response:
    service, secret = state_of(request), request.cookies.get(COOKIE, "")
    answer: Response
    try:
        provider = _provider(service)
        pending = PendingSignIn.opened(secret, _box(service))
        asked = (provider, public_url(request, _CALLBACK), pending, state, code, error, iss)
        async with _counted(request, code):
            identity = await to_thread.run_sync(authorization_code.finish, *asked, limiter=service.provider_threads)
        session, lasts = await to_thread.run_sync(
            _enter, service, identity, pending, request_id(request.scope), limiter=service.provider_threads
        )
    except Problem as problem:
        answer = render(
            request, "sign_in_refused.html", problem.status, problem=problem, no_tenant=isinstance(problem, NoTenant)
        )
    else:
        answer = opened(request, session, lasts, render(request, "signed_in.html", next=pending.then))
    answer.delete_cookie(COOKIE, path=_PATH, httponly=True, samesite="lax")
    answer.headers["Cache-Control"] = "no-store"
    return answer


@router.get("/invitations/{secret}")
async def show_invitation(secret: str, request: Request) -> Response:
    service = state_of(request)
    async with _counted(request, secret):
        said = await run_in_threadpool(_described, service, secret)
    name = service.provider.name if service.provider is not None else None
    answer = render(request, "invitation.html", secret=secret, provider=name, **said)
    answer.headers["Referrer-Policy"] = "no-referrer"
    return answer


@router.post("/invitations/{secret}")
async def accept_invitation(secret: str, request: Request) -> Response:
    """A form, whose origin is checked: no other site's link moves anybody into a tenant. Its answer is a page, since the policy
    that lets forms lead to this site alone holds for redirects after them too."""
    await show_invitation(secret, request)  # refuses one that is over before anybody signs in
    address, pending = await _begun(request, HOME, secret)
    return _remembering(request, render(request, "going_to_provider.html", address=address), pending)


@router.post("/tenant")
def change_tenant(request: Request, reader: Reader, form: Form) -> Response:
    """Another of the member's tenants, in a new session of the member's whole role there."""
    service = state_of(request)
    with service.system.begin() as session:
        if reader.user_id is None or not is_members_own(session, reader):
            raise RoleMissing(
                "This session stands for a key, which belongs to one tenant. A member who signed in by the identity provider "
                "may change to another.",
                needs=Role.VIEWER.value,
            )
        places = {place.tenant_id: place for place in places_of(session, reader.user_id)}
        if (place := places.get(form.one("tenant"))) is None:
            raise NoTenant("You are no member of this tenant.")
        principal = enter(session, reader.user_id, place)
        close_session(session, request.cookies.get(SESSION_COOKIE, ""))
        secret, lasts = open_session(session, principal, _lasts(service))
        note_sign_in(session, principal, "change_tenant", request_id(request.scope))
    service.keys.forget()
    return opened(request, secret, lasts, RedirectResponse(HOME, 303))


@asynccontextmanager
async def _counted(request: Request, credential: str) -> AsyncIterator[None]:
    """Counts a wrong code or link against the caller's address. Raises TooManyFailures."""
    async with state_of(request).throttle.attempt(address_of(request), credential) as attempt:
        try:
            yield
        except (SignInRefused, InvitationOver):
            attempt.failed = True
            raise


async def _begun(request: Request, then: str, invitation: str | None = None) -> tuple[str, PendingSignIn]:
    service = state_of(request)
    asked = (_provider(service), public_url(request, _CALLBACK), then, invitation)
    return await to_thread.run_sync(authorization_code.begin, *asked, limiter=service.provider_threads)


def _remembering(request: Request, answer: Response, pending: PendingSignIn) -> Response:
    answer.set_cookie(
        COOKIE,
        pending.sealed(_box(state_of(request))),
        max_age=authorization_code.LASTS_SECONDS,
        path=_PATH,
        secure=request.url.scheme == "https",
        httponly=True,
        samesite="lax",
    )
    answer.headers["Cache-Control"] = "no-store"
    return answer


def _enter(service: State, identity: Identity, pending: PendingSignIn, request_id: str) -> tuple[str, timedelta]:
    """A new session's secret and duration."""
    with service.system.begin() as session:
        user, place = admit(session, identity, pending.invitation)
        principal: Principal = enter(session, user.id, place)
        secret, lasts = open_session(session, principal, _lasts(service))
        note_sign_in(session, principal, "join_tenant" if pending.invitation else "sign_in", request_id)
    return secret, lasts


def _described(service: State, secret: str) -> dict[str, Any]:
    with service.system.begin() as session:
        invitation = open_invitation(session, secret)
        tenant = session.get_one(Tenant, invitation.tenant_id).name
        return {"tenant": tenant, "role": invitation.role, "email": invitation.email, "invited_by": invitation.invited_by}


def _lasts(service: State) -> timedelta:
    return timedelta(hours=service.settings.session_hours)


def _provider(service: State) -> Provider:
    if service.provider is None:
        raise NoSignIn("No identity provider is set (MOTET_OIDC_ISSUER); sign in with an API key.")
    return service.provider


def _box(service: State) -> SecretBox:
    return SecretBox.of(service.settings, authorization_code.PURPOSE)
