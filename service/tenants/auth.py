"""Who may call a route: dependencies that turn the Authorization header into a Principal with the scope the route needs."""

from collections.abc import Callable
from typing import Annotated

from fastapi import Depends
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from service.errors import Forbidden, Unauthorized
from service.state import Db
from service.tenants.keys import Principal, Scope, check_key

_bearer = HTTPBearer(scheme_name="ApiKey", description="An API key, `mk_...`", auto_error=False)
_Bearer = Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)]

_FIXES = {
    "unknown": "The API key is not known here; check that it is whole and belongs to this service.",
    "revoked": "The API key was revoked; ask an admin for a new one.",
    "expired": "The API key has expired; ask an admin for a new one.",
}


class KeyMissing(Unauthorized):
    code = "key_missing"


class KeyRefused(Unauthorized):
    code = "key_refused"


class ScopeMissing(Forbidden):
    code = "scope_missing"


def authenticate(bearer: _Bearer, db: Db) -> Principal:
    """The caller. Raises KeyMissing or KeyRefused."""
    if bearer is None:
        raise KeyMissing("This needs an API key: send the header `Authorization: Bearer mk_...`.")
    with db.begin() as session:
        check = check_key(session, bearer.credentials)
    if check.principal is None:
        raise KeyRefused(_FIXES[check.reason], reason=check.reason)
    return check.principal


def _needs(scope: Scope) -> Callable[[Principal], Principal]:
    def allowed(principal: Annotated[Principal, Depends(authenticate)]) -> Principal:
        if scope not in principal.scopes:
            held = ", ".join(sorted(principal.scopes)) or "none"
            raise ScopeMissing(f"This needs a key with the scope '{scope}'; this key has: {held}.", needs=scope.value)
        return principal

    return allowed


Reader = Annotated[Principal, Depends(_needs(Scope.READ))]
Writer = Annotated[Principal, Depends(_needs(Scope.WRITE))]
Admin = Annotated[Principal, Depends(_needs(Scope.ADMIN))]
