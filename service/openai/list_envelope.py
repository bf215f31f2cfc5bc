"""OpenAI's list envelope and keyset pagination: `after` is the id of the previous page's last entry. Knows no table."""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Annotated, Any, Generic, Literal, TypeVar

from fastapi import Query
from pydantic import BaseModel
from sqlalchemy import Select, select, tuple_
from sqlalchemy.orm import Session

from service.database.engine import Base
from service.http.problems import invalid_field
from service.openai.id_translation import OwnId
from service.tenants.api_keys import Principal
from service.tenants.tenant_scope import scoped

Item = TypeVar("Item", bound=BaseModel)
Row = TypeVar("Row", bound=Base)

After = Annotated[str | None, Query(max_length=128, description="Id of the last entry of the page before"), OwnId]
Limit = Annotated[int, Query(ge=1, le=100)]
# of lists whose entries are small; OpenAI's page of files has 10,000 if nothing is said, which takes long to make
LongLimit = Annotated[int, Query(ge=1, le=10_000)]
USUAL = 500


class ListOf(BaseModel, Generic[Item]):
    object: Literal["list"] = "list"
    data: list[Item]
    has_more: bool
    first_id: str | None
    last_id: str | None


def list_of(items: Sequence[Any], has_more: bool) -> ListOf[Any]:
    ids = [item.id for item in items]
    return ListOf(data=list(items), has_more=has_more, first_id=ids[0] if ids else None, last_id=ids[-1] if ids else None)


def listed(
    session: Session,
    principal: Principal,
    rows: Select[Row],
    model: type[Row],
    after: str | None,
    limit: int,
    render: Callable[[Sequence[Row]], Sequence[Item]],
    oldest_first: bool = False,
) -> ListOf[Item]:
    """One page of `rows`, a query already limited to the caller's tenant. Raises Invalid if `after` is none of the tenant's; it
    may be deleted, as by a client that deletes what it lists."""
    table = model.__table__.c
    key = tuple_(table.created_at, table.id)
    statement = rows
    if after is not None:
        last = session.execute(
            scoped(select(table.created_at, table.id).where(table.id == after), model, principal)
        ).one_or_none()
        if last is None:
            raise invalid_field("after", "not_found", f"there is nothing {after!r} that this key could see")
        place = tuple_(*last)
        statement = rows.where(key > place if oldest_first else key < place)
    order = [column.asc() if oldest_first else column.desc() for column in (table.created_at, table.id)]
    found = list(session.scalars(statement.order_by(*order).limit(limit + 1)))
    return list_of(render(found[:limit]), len(found) > limit)


def unix(moment: datetime) -> int:
    return int(moment.timestamp())
