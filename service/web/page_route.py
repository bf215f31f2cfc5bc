"""The route class of all pages: security headers, forms' origin and CSRF checks, and problems shown as pages."""

from collections.abc import Callable, Coroutine, Mapping
from typing import Any
from urllib.parse import quote, urlsplit

from fastapi import APIRouter, Request, Response
from fastapi.responses import RedirectResponse
from fastapi.routing import APIRoute

from service.authentication import CSRF_IN_FORM, SESSION_COOKIE, CsrfRefused, ScopeMissing, check_csrf
from service.http.problem_handlers import RENDERER
from service.http.problems import Forbidden, Problem, Unauthorized, summary
from service.tenants.api_keys import Scope
from service.tenants.browser_sessions import is_session
from service.tenants.member_roles import RoleMissing
from service.web.rendering import render

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "private, no-cache",
}
SIGN_IN = "/sign-in"


class FormRefused(Forbidden):
    code, title = "form_refused", "The form came from another place"


class PageRoute(APIRoute):
    """A page. A POST must be a form of this site, with the session's CSRF token where there is a session."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        usual = super().get_route_handler()

        async def handle(request: Request) -> Response:
            request.scope["state"][RENDERER] = problem_page
            if request.method == "POST":
                await _check_form(request)
            response = await usual(request)
            for name, value in HEADERS.items():
                response.headers.setdefault(name, value)
            return response

        return handle


def pages() -> APIRouter:
    """A router for pages."""
    return APIRouter(route_class=PageRoute, include_in_schema=False)


def problem_page(request: Request, problem: Problem, headers: Mapping[str, str]) -> Response:
    """The problem as a page; where nobody is signed in, the way to the sign-in page."""
    if isinstance(problem, Unauthorized) and request.url.path != SIGN_IN:
        reason = problem.extra.get("reason")
        here = f"{request.url.path}?{request.url.query}".rstrip("?") if request.method == "GET" else _form_page(request)
        why = f"&why={reason}" if reason in ("revoked", "expired", "session_over", "membership_over") else ""
        return RedirectResponse(
            f"{SIGN_IN}?next={quote(here, safe='/')}{why}", 303, dict(headers) | {"Cache-Control": "no-store"}
        )
    title, detail = problem.title, problem.detail
    if problem.code == "route_unknown":
        title, detail = (
            "No such page",
            f"There is no page at {request.url.path}. The address is mistyped, or its page has moved.",
        )
    if problem.errors and detail == summary(problem.errors):
        detail = ""  # the list below says it
    said = {"problem": problem, "title": title, "detail": detail, "request_id": headers["x-request-id"]}
    said |= {"way_out": _way_out(problem), "form_page": _form_page(request) if request.method == "POST" else None}
    answer = render(request, "problem.html", status=problem.status, **said)
    kept = {name: value for name, value in headers.items() if name.lower() in ("retry-after", "x-request-id", "allow")}
    answer.headers.update(HEADERS | {"Cache-Control": "no-store"} | kept)
    return answer


def _form_page(request: Request) -> str:
    """The page of this site that a form was on, so that signing in leads back to it."""
    host, _, path = request.headers.get("referer", "").partition("://")[2].partition("/")
    path = path.lstrip("/")  # two slashes would begin another host
    return f"/{path}" if host == request.url.netloc and not path.startswith(SIGN_IN[1:]) else "/tasks"


def _way_out(problem: Problem) -> str | None:
    """What somebody who is signed in with a key of too few scopes can do."""
    if isinstance(problem, RoleMissing):
        return "Ask an owner of the tenant."
    if not isinstance(problem, ScopeMissing):
        return None
    scope = problem.extra["needs"]
    whose = "an operator's key" if scope == Scope.ADMIN else "ask an admin for one"
    return f"Sign out, then sign in with a key that has the scope {scope}: {whose}."


async def _check_form(request: Request) -> None:
    """Raises FormRefused for a form of another site, CsrfRefused without the session's token."""
    site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin")
    if site not in (None, "same-origin", "none") or (origin is not None and urlsplit(origin).netloc != request.url.netloc):
        raise FormRefused("This form came from another site. Open the page here and send it again.")
    secret = request.cookies.get(SESSION_COOKIE, "")
    if is_session(secret):
        request.scope["state"][CSRF_IN_FORM] = True  # for who is asked before the form is read
        given = (await request.form()).get("csrf")
        try:
            check_csrf(request, secret, given if isinstance(given, str) else None)
        except CsrfRefused as refused:
            raise CsrfRefused(
                "The page of this form is of an earlier session: somebody signed in or out in this browser since it was "
                "opened. Reload that page, then send the form again."
            ) from refused
