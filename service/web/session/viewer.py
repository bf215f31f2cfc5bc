"""Who looks at a page: the session's principal, with the tenant's name for the page's frame."""

from dataclasses import dataclass
from typing import Annotated

from anyio import from_thread
from fastapi import Depends, Request
from sqlalchemy.exc import SQLAlchemyError
from starlette.concurrency import run_in_threadpool

from service.app_state import state_of
from service.authentication import SESSION_COOKIE, Db, Reader, authenticate, require_scope
from service.database.engine import Database
from service.http.problems import Problem
from service.tenants.api_keys import Principal, Scope
from service.tenants.browser_sessions import is_session
from service.tenants.models import Tenant
from service.web.rendering import VIEWER


@dataclass(frozen=True)
class Viewer:
    """Pages hide what the viewer's key may not do; the routes behind them refuse it all the same."""

    principal: Principal
    tenant: str

    @property
    def writes(self) -> bool:
        return Scope.WRITE in self.principal.scopes

    @property
    def is_admin(self) -> bool:
        return Scope.ADMIN in self.principal.scopes


async def _viewer(request: Request, reader: Reader, db: Db) -> Viewer:
    viewer = Viewer(reader, await run_in_threadpool(_tenant_name, db, reader))
    request.scope["state"][VIEWER] = viewer
    return viewer


def viewer_of_no_route(request: Request) -> Viewer | None:
    """Who opened an address that no route has, and thus no dependency has authenticated; None where nobody is signed in.
    Called in a thread of the pool, as exception handlers are."""
    if not is_session(request.cookies.get(SESSION_COOKIE, "")) or request.method not in ("GET", "HEAD"):
        return None
    try:
        reader = require_scope(Scope.READ, from_thread.run(authenticate, request, None))
        return Viewer(reader, _tenant_name(state_of(request).db, reader))
    except (Problem, SQLAlchemyError):  # the page says where it leads nowhere all the same
        return None


def _tenant_name(db: Database, reader: Principal) -> str:
    # not the audited session of the page's action: this reads alone
    with db.for_tenant(reader.tenant_id).begin() as session:
        return session.get_one(Tenant, reader.tenant_id).name


Looking = Annotated[Viewer, Depends(_viewer)]
