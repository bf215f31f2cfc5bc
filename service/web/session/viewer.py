"""Who looks at a page: the session's principal, with the tenant's name for the page's frame."""

from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Request
from starlette.concurrency import run_in_threadpool

from service.authentication import Db, Reader
from service.database.engine import Database
from service.tenants.api_keys import Principal, Scope
from service.tenants.member_roles import Role
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
    def role(self) -> Role | None:
        return self.principal.role

    @property
    def is_admin(self) -> bool:
        return Scope.ADMIN in self.principal.scopes


async def _viewer(request: Request, reader: Reader, db: Db) -> Viewer:
    return await look(request, reader, db)


async def look(request: Request, reader: Principal, db: Database) -> Viewer:
    """The request's Viewer, which its page's frame shows."""
    viewer = Viewer(reader, await run_in_threadpool(_tenant_name, db, reader))
    request.scope["state"][VIEWER] = viewer
    return viewer


def _tenant_name(db: Database, reader: Principal) -> str:
    # not the audited session of the page's action: this reads alone
    with db.for_tenant(reader.tenant_id).begin() as session:
        return session.get_one(Tenant, reader.tenant_id).name


Looking = Annotated[Viewer, Depends(_viewer)]
