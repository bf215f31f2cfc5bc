"""Keyset pagination: newest first, with an opaque cursor that says where the next page begins. Knows no table."""

import base64
import binascii
import json
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Annotated, Any, Generic, Literal, TypeVar

from fastapi import Query
from pydantic import BaseModel, Field
from sqlalchemy import Select, select, tuple_
from sqlalchemy.orm import Session

from service.database.engine import Base
from service.http.problems import Invalid, invalid_field

MAX_LIMIT = 100

Cursor = Annotated[str | None, Query(max_length=200, description="`next_cursor` of the page before")]
Limit = Annotated[int, Query(ge=1, le=MAX_LIMIT, description="Entries on the page")]

Item = TypeVar("Item")
Row = TypeVar("Row", bound=Base)


class Page(BaseModel, Generic[Item]):
    object: Literal["list"] = "list"
    data: list[Item]
    next_cursor: str | None = Field(description="Where the next page begins; null on the last one")


def page(
    session: Session,
    statement: Select[Row],
    model: type[Row],
    cursor: str | None,
    limit: int,
    render: Callable[[Sequence[Row]], list[Item]],
) -> Page[Item]:
    """One page of the statement's rows, newest first. Rows need `id` and `created_at`; `render` gets the whole page at once."""
    key = model.__table__.c.created_at, model.__table__.c.id
    if cursor is not None:
        created_at, id = read_cursor(cursor)
        statement = statement.where(tuple_(*key) < tuple_(created_at, id))
    order = [column.desc() for column in key]
    # ids first, which an index that covers the conditions can answer; whole rows of the page alone
    ids = statement.with_only_columns(key[1], maintain_column_froms=True).order_by(*order).limit(limit + 1)
    rows: list[Any] = list(session.scalars(select(model).where(key[1].in_(ids)).order_by(*order)))
    more, rows = len(rows) > limit, rows[:limit]
    return Page(data=render(rows), next_cursor=write_cursor(rows[-1]) if more else None)


def write_cursor(row: Any) -> str:
    """The cursor of the page after this row, from its `created_at` and `id`."""
    return pack_cursor([row.created_at.isoformat(), row.id])


def read_cursor(cursor: str) -> tuple[datetime, str]:
    """The `created_at` and `id` after which the page begins. Raises Invalid."""
    try:
        at, id = unpack_cursor(cursor)
        moment = datetime.fromisoformat(at)
    except (ValueError, TypeError):
        moment, id = None, None
    if moment is None or moment.tzinfo is None or not isinstance(id, str) or "\0" in id:
        raise cursor_unknown()
    return moment, id


def pack_cursor(said: Sequence[Any]) -> str:
    """Encode JSON values as an opaque cursor."""
    text = json.dumps(said, separators=(",", ":"))
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def unpack_cursor(cursor: str) -> Any:
    """The cursor's values, unchecked; None if it cannot be decoded."""
    try:
        said = json.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
        json.dumps(said, ensure_ascii=False).encode()  # a lone surrogate cannot be sent to the database
        return said
    except (ValueError, binascii.Error, RecursionError):
        return None


def cursor_unknown() -> Invalid:
    return invalid_field("cursor", "cursor_unknown", "is not a cursor of this list; use `next_cursor` as it was given")
