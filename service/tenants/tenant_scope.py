"""The one tenant filter. Every query of a tenant's rows goes through it, so that a foreign id is an id that is not there."""

from typing import Any, TypeVar

from sqlalchemy import Select, bindparam, select
from sqlalchemy.orm import Session

from service.database.engine import Base
from service.http.problems import NotFound
from service.tenants.api_keys import Principal

Rows = TypeVar("Rows", bound="Select[*tuple[Any, ...]]")
Row = TypeVar("Row", bound=Base)


def scoped(statement: Rows, model: type[Base], principal: Principal) -> Rows:
    """The statement, narrowed to the rows of `model` that belong to the caller's tenant."""
    return statement.where(model.__table__.c.tenant_id == principal.tenant_id)


def scoped_when_asked(statement: Rows, model: type[Base]) -> Rows:
    """The same for a statement that is made once and executed often, since making one takes longer than all else about it: it
    is executed with `whose(principal)`."""
    return statement.where(model.__table__.c.tenant_id == bindparam("tenant"))


def whose(principal: Principal) -> dict[str, str]:
    """The parameter of a statement that is scoped when it is asked."""
    return {"tenant": principal.tenant_id}


def find(session: Session, model: type[Row], id: str, principal: Principal, noun: str, *, lock: bool = False) -> Row:
    """The caller's row with this id, locked for update if asked. Raises NotFound, also where it is another tenant's, or
    deleted."""
    statement = scoped(select(model).where(model.__table__.c.id == id), model, principal)
    if "deleted_at" in model.__table__.c:
        statement = statement.where(model.__table__.c.deleted_at.is_(None))
    row = session.scalar(statement.with_for_update() if lock else statement)
    if row is None:
        raise missing(noun, id)
    return row


def missing(noun: str, id: str) -> NotFound:
    """The 404 of an id that the caller has not got."""
    return NotFound(f"There is no {noun} {id!r} that this key could see.")
