"""Pages that sign in, by key or by one-time link, and out; and the theme, which a cookie keeps too."""

from datetime import timedelta
from urllib.parse import urlsplit

from fastapi import Request, Response
from fastapi.responses import RedirectResponse
from starlette.concurrency import run_in_threadpool

from service.app_state import State, state_of
from service.authentication import SESSION_COOKIE
from service.http.problems import Problem
from service.tenants.api_keys import Principal, announce_revocation
from service.tenants.auth_throttle import address_of
from service.tenants.browser_sessions import close_session, is_session, open_session, use_link
from service.web.page_route import SIGN_IN, pages
from service.web.rendering import THEME_COOKIE, THEMES, render

router = pages()

HOME = "/tasks"
_LONGEST = 1500  # characters of a path to go on to; it travels in a cookie
_WHY = {
    "revoked": "The key of this session was revoked. Sign in with another one.",
    "expired": "The key of this session has expired. Sign in with another one.",
    "session_over": "The session has ended. Sign in again to go on.",
    "membership_over": "You are no member of this tenant any more. Sign in to go on in another one.",
}
_REFUSED = {
    "unknown": "This key is not known here. Check that it is whole and belongs to this service.",
    "revoked": "This key was revoked. Ask an admin for a new one.",
    "expired": "This key has expired. Ask an admin for a new one.",
}


@router.get("/")
async def home() -> Response:
    return RedirectResponse(HOME, 303)


@router.get(SIGN_IN)
async def sign_in_page(request: Request, next: str = HOME, why: str = "") -> Response:
    return render(request, "sign_in.html", next=within(next), why=_WHY.get(why), refused=None, provider=_provider(request))


@router.post(SIGN_IN)
async def sign_in(request: Request) -> Response:
    form, state = await request.form(), state_of(request)
    key, then = str(form.get("key", "")).strip(), within(str(form.get("next", HOME)))
    try:
        check = await state.keys.ask(key, address_of(request))
    except Problem as problem:  # too many wrong keys came from this address
        return _refusal(request, then, problem.detail, problem.status)
    if check.principal is None or is_session(key):
        return _refusal(request, then, _REFUSED.get(check.reason, _REFUSED["unknown"]), 401)
    return await _opened(request, check.principal, RedirectResponse(then, 303))


@router.get(SIGN_IN + "/{secret}")
async def use_sign_in_link(secret: str, request: Request, next: str = HOME) -> Response:
    """Answers with a page and not a redirect: after a click on another site, a redirect would not carry the Strict cookie."""
    state = state_of(request)
    async with state.throttle.attempt(address_of(request), secret) as attempt:
        principal = await run_in_threadpool(_use, state, secret)
        attempt.failed = principal is None
    if principal is None:
        said = "This link was used already, or is older than 15 minutes. Sign in with a key; `motet dashboard` makes a link."
        return _refusal(request, HOME, said, 401)
    return await _opened(request, principal, render(request, "signed_in.html", next=within(next)))


@router.post("/sign-out")
async def sign_out(request: Request) -> Response:
    secret, state = request.cookies.get(SESSION_COOKIE, ""), state_of(request)
    await run_in_threadpool(_close, state, secret)
    state.keys.forget()
    answer = RedirectResponse(SIGN_IN, 303)
    answer.delete_cookie(SESSION_COOKIE, path="/", httponly=True, samesite="strict")
    return answer


@router.post("/theme")
async def set_theme(request: Request) -> Response:
    form = await request.form()
    theme = str(form.get("theme", "auto"))
    answer = RedirectResponse(within(str(form.get("next", HOME))), 303)
    secure = request.url.scheme == "https"
    chosen = theme if theme in THEMES else "auto"
    answer.set_cookie(THEME_COOKIE, chosen, max_age=400 * 86400, path="/", secure=secure, httponly=True, samesite="strict")
    return answer


def _provider(request: Request) -> str | None:
    """What people call the identity provider, if there is one."""
    provider = state_of(request).provider
    return None if provider is None else provider.name


def _refusal(request: Request, then: str, said: str, status: int) -> Response:
    return render(request, "sign_in.html", status, next=then, why=None, refused=said, provider=_provider(request))


async def _opened(request: Request, principal: Principal, answer: Response) -> Response:
    """The answer with the cookie of a new session."""
    secret, lasts = await run_in_threadpool(_open, state_of(request), principal)
    return opened(request, secret, lasts, answer)


def opened(request: Request, secret: str, lasts: timedelta, answer: Response) -> Response:
    """The answer with the session's cookie."""
    answer.set_cookie(
        SESSION_COOKIE,
        secret,
        max_age=max(1, int(lasts.total_seconds())),
        path="/",
        secure=request.url.scheme == "https",
        httponly=True,
        samesite="strict",
    )
    answer.headers["Cache-Control"] = "no-store"
    return answer


def _open(state: State, principal: Principal) -> tuple[str, timedelta]:
    with state.system.begin() as session:
        return open_session(session, principal, timedelta(hours=state.settings.session_hours))


def _use(state: State, secret: str) -> Principal | None:
    with state.system.begin() as session:
        return use_link(session, secret)


def _close(state: State, secret: str) -> None:
    with state.system.begin() as session:
        close_session(session, secret)
        announce_revocation(session)  # streams that it opened end


def within(path: str) -> str:
    """The path if it leads to a page of this site, otherwise home: a link must not lead elsewhere after signing in."""
    parts = urlsplit(path)
    safe = (
        len(path) <= _LONGEST
        and path.startswith("/")
        and not path.startswith(("//", "/\\"))
        and not parts.netloc
        and "\\" not in path
    )
    return path if safe and path.isprintable() else HOME
