"""Whom an executor may answer, by who is on it. Reads no rows.

Where a task shares with nobody, its executor answers its own tenant alone. A request for the adapter of such a task goes where
its tenant is alone.
"""

from collections.abc import Collection
from dataclasses import dataclass

from sqlalchemy import ColumnElement, or_

from service.completions.models import CompletionRequest


@dataclass(frozen=True)
class Audience:
    """only: the tenant that is answered alone; None: all. alone: the tenant that is on the executor alone, if there is one."""

    only: str | None
    alone: str | None

    def has(self, tenant_id: str, dedicated: bool) -> bool:
        """Whether a request of this tenant may be answered. dedicated: it is for an adapter whose task shares with nobody."""
        return self.only in (None, tenant_id) and (not dedicated or self.alone == tenant_id)

    @property
    def conditions(self) -> list[ColumnElement[bool]]:
        """The same of rows."""
        row = CompletionRequest
        theirs = [row.tenant_id == self.only] if self.only is not None else []
        return [*theirs, or_(row.dedicated.is_(False), row.tenant_id == (self.alone or ""))]


def audience_of(there: Collection[tuple[str | None, bool]]) -> Audience:
    """there: each placement's or session's tenant (None: a session that all share), and whether it shares."""
    tenants = {tenant for tenant, _ in there}
    unshared = next((tenant for tenant, shares in there if not shares), None)
    return Audience(unshared, tenants.pop() if len(tenants) == 1 else None)
