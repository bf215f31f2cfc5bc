"""Authentication dependencies: turn the Authorization header, or a browser session's cookie, into a Principal with the scope
that the route needs, and into a database session limited to the tenant's rows.

Browsers send the cookie by themselves, so a request that changes something needs the session's CSRF token too, in a header.
"""

import hashlib
import hmac
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, cast

from fastapi import Depends, Request
from fastapi.routing import APIRoute
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from service.app_state import state_of
from service.audit.audit_trail import Note
from service.database.engine import Database
from service.http.body_middleware import Gate
from service.http.middleware import answer_with, request_id
from service.http.problems import Forbidden, Unauthorized
from service.tenants.api_keys import Principal, Scope
from service.tenants.auth_throttle import address_of
from service.tenants.browser_sessions import is_session
from service.tenants.member_roles import Role, RoleMissing

_bearer = HTTPBearer(scheme_name="ApiKey", description="An API key, `mk_...`", auto_error=False)
Bearer = Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)]
_READS = ("GET", "HEAD")
_CALLER = "caller"  # key of the Principal in the request's state
CSRF_IN_FORM = "csrf_in_form"  # key that a page sets there which compares the token of its form itself

_FIXES = {
    "unknown": "The API key is not known here; check that it is whole and belongs to this service.",
    "revoked": "The API key was revoked; ask an admin for a new one.",
    "expired": "The API key has expired; ask an admin for a new one.",
    "session_over": "The session has ended; sign in again.",
    "membership_over": "Whoever this key belongs to is no member of the tenant any more; ask an owner of the tenant.",
}
SESSION_COOKIE = "motet_session"
CSRF_HEADER = "x-csrf-token"


class KeyMissing(Unauthorized):
    code = "key_missing"


class KeyRefused(Unauthorized):
    code = "key_refused"


class ScopeMissing(Forbidden):
    code = "scope_missing"


class CsrfRefused(Forbidden):
    code, title = "csrf_refused", "The change came without its session's token"


def csrf_token(secret_key: str, session_secret: str) -> str:
    """The token that a page of this session sends back with whatever it changes; it needs no storage."""
    return hmac.new(secret_key.encode(), f"csrf {session_secret}".encode(), hashlib.sha256).hexdigest()


def check_csrf(request: Request, session_secret: str, given: str | None) -> None:
    """Raise CsrfRefused unless `given` is this session's token."""
    expected = csrf_token(state_of(request).settings.secret_key.get_secret_value(), session_secret)
    if given is None or not hmac.compare_digest(expected.encode(), given.encode(errors="replace")):
        raise CsrfRefused(f"A change under a session's cookie needs the page's own token in {CSRF_HEADER}; reload the page.")


async def authenticate(request: Request, bearer: Bearer) -> Principal:
    """The request's Principal, cached in its state, so that the rate limit counts a request once. Raises KeyMissing,
    KeyRefused, TooManyFailures or RateLimitExceeded."""
    known: dict[str, Any] = request.scope["state"]
    if _CALLER not in known:
        known[_CALLER] = await _authenticate(request, bearer)
    return cast(Principal, known[_CALLER])


async def _authenticate(request: Request, bearer: HTTPAuthorizationCredentials | None) -> Principal:
    state, secret = state_of(request), _credential(request, bearer)
    principal = state.keys.remembered(secret)
    if principal is None:
        check = await state.keys.ask(secret, address_of(request))
        if check.principal is None:
            raise KeyRefused(_FIXES[check.reason], reason=check.reason)
        principal = check.principal
    per_minute = principal.requests_per_minute or state.settings.requests_per_minute
    answer_with(request.scope, (await state.rates.take(principal.key_id, per_minute)).headers)
    return principal


def _credential(request: Request, bearer: HTTPAuthorizationCredentials | None) -> str:
    """The request's key or session secret. Raises KeyMissing, KeyRefused or CsrfRefused."""
    if bearer is not None:
        if is_session(bearer.credentials):  # it would need no CSRF token here
            raise KeyRefused(_FIXES["unknown"], reason="unknown")
        return bearer.credentials
    secret = request.cookies.get(SESSION_COOKIE, "")
    if not is_session(secret):
        raise KeyMissing("This needs an API key: send the header `Authorization: Bearer mk_...`.")
    if request.method not in _READS and not request.scope["state"].get(CSRF_IN_FORM):
        check_csrf(request, secret, request.headers.get(CSRF_HEADER))
    return secret


_Caller = Annotated[Principal, Depends(authenticate)]


def require_scope(scope: Scope, principal: Principal) -> Principal:
    """The principal. Raises ScopeMissing unless its key has the scope."""
    if scope not in principal.scopes:
        held = ", ".join(sorted(principal.scopes)) or "none"
        raise ScopeMissing(f"This needs a key with the scope '{scope}'; this key has: {held}.", needs=scope.value)
    return principal


def require_owner(principal: Principal) -> Principal:
    """The principal. Raises RoleMissing unless it is a member with the role owner."""
    if principal.role is not Role.OWNER:
        held = "a key of the tenant itself" if principal.role is None else f"the role {principal.role}"
        raise RoleMissing(f"This needs a member with the role owner; the caller has {held}.", needs=Role.OWNER.value)
    return principal


class _CallerGate(Gate):
    """The caller, if `check` returns it; otherwise `check` raises."""

    def __init__(self, check: Callable[[Principal], Principal]) -> None:
        self._check = check

    async def __call__(self, principal: _Caller) -> Principal:
        return self._check(principal)

    async def admit(self, request: Request) -> Principal:
        return self._check(await _caller(request))


def _needs(scope: Scope) -> Gate:
    return _CallerGate(lambda caller: require_scope(scope, caller))


def _owner_who_needs(scope: Scope) -> Gate:
    return _CallerGate(lambda caller: require_owner(require_scope(scope, caller)))


def _member_or_writer(caller: Principal) -> Principal:
    return require_scope(Scope.WRITE if caller.user_id is None else Scope.READ, caller)


Reader = Annotated[Principal, Depends(_needs(Scope.READ))]
Writer = Annotated[Principal, Depends(_needs(Scope.WRITE))]
# for what members do in their own right, whatever their role; of other keys, those that may write
MemberOrWriter = Annotated[Principal, Depends(_CallerGate(_member_or_writer))]
Admin = Annotated[Principal, Depends(_needs(Scope.ADMIN))]
ReadingOwner = Annotated[Principal, Depends(_owner_who_needs(Scope.READ))]
Owner = Annotated[Principal, Depends(_owner_who_needs(Scope.WRITE))]


async def _still_allowed(request: Request, principal: _Caller) -> Callable[[], Awaitable[bool]]:
    state, secret, address = state_of(request), _credential(request, await _bearer(request)), address_of(request)

    async def still() -> bool:
        found = state.keys.remembered(secret) or (await state.keys.ask(secret, address)).principal
        return found is not None and found.tenant_id == principal.tenant_id and found.scopes >= principal.scopes

    return still


# for answers that go on: whether the caller's key or session still gives the rights that the request began with
StillAllowed = Annotated[Callable[[], Awaitable[bool]], Depends(_still_allowed)]


def note_of(request: Request, principal: Principal, reading: bool = False) -> Note:
    """The request's audit note, recorded if it writes, or always if `reading`."""
    route: APIRoute = request.scope["route"]
    targets = [str(value) for value in request.path_params.values()]
    return Note(principal, route.operation_id or route.name, targets, request_id(request.scope), reading)


def _note(request: Request, principal: Principal) -> Note | None:
    return None if request.method in _READS else note_of(request, principal)


async def _caller(request: Request) -> Principal:
    """As the dependency `authenticate`, which FastAPI would resolve once more, with its parameters, for each that names it."""
    return await authenticate(request, await _bearer(request))


async def _db(request: Request) -> Database:
    caller = await _caller(request)
    return state_of(request).db.for_tenant(caller.tenant_id, _note(request, caller))


async def _read_db(request: Request) -> Database:
    caller = await _caller(request)
    return state_of(request).db.for_tenant(caller.tenant_id, note_of(request, caller, reading=True))


async def _system_db(request: Request) -> Database:
    return state_of(request).system.for_tenant(None, _note(request, await _caller(request)))


async def _admin_db(request: Request, admin: Admin) -> Database:
    return state_of(request).system.for_tenant(None, _note(request, admin))


async def admit(request: Request, scope: Scope) -> Principal:
    """A hot route's Principal, without FastAPI's dependency resolution. Raises ScopeMissing, and as `authenticate`."""
    return require_scope(scope, await _caller(request))


# The audit log records writes through any of these, and reads through NotedDb too.
Db = Annotated[Database, Depends(_db)]  # the caller's rows only
NotedDb = Annotated[Database, Depends(_read_db)]
# every tenant's rows, for keys and members, which the app role may not read: limit each query by `scoped`
KeysDb = Annotated[Database, Depends(_system_db)]
AdminDb = Annotated[Database, Depends(_admin_db)]  # every tenant's rows; needs the scope admin
