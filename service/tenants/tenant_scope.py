"""The one tenant filter: every query of a tenant's rows uses it, so that another tenant's id looks like an unknown one."""

from typing import Any, TypeVar

from sqlalchemy import Select, bindparam, select
from sqlalchemy.orm import Session

from service.database.engine import Base
from service.http.openai_ids import hint
from service.http.problems import NotFound
from service.tenants.api_keys import Principal

Rows = TypeVar("Rows", bound="Select[*tuple[Any, ...]]")
Row = TypeVar("Row", bound=Base)


def scoped(statement: Rows, model: type[Base], principal: Principal) -> Rows:
    """The statement, limited to the caller's tenant's rows of `model`."""
    return statement.where(model.__table__.c.tenant_id == principal.tenant_id)


def scoped_by_parameter(statement: Rows, model: type[Base]) -> Rows:
    """As `scoped`, for a statement that is built once, since building takes longest, and executed with `tenant_parameter`."""
    return statement.where(model.__table__.c.tenant_id == bindparam("tenant"))


def tenant_parameter(principal: Principal) -> dict[str, str]:
    """The parameter of a statement made by `scoped_by_parameter`."""
    return {"tenant": principal.tenant_id}


def find(session: Session, model: type[Row], id: str, principal: Principal, noun: str, *, lock: bool = False) -> Row:
    """The caller's row with this id, locked for update if `lock`. Raises NotFound, also for deleted and other tenants' rows."""
    statement = scoped(select(model).where(model.__table__.c.id == id), model, principal)
    if "deleted_at" in model.__table__.c:
        statement = statement.where(model.__table__.c.deleted_at.is_(None))
    row = session.scalar(statement.with_for_update() if lock else statement)
    if row is None:
        raise missing(noun, id)
    return row


def missing(noun: str, id: str) -> NotFound:
    """The 404 for an id that the caller's tenant does not have."""
    return NotFound(f"There is no {noun} {id!r} that this key could see.{hint(id)}")
