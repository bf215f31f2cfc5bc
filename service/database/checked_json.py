"""JSON columns that are checked as they are read: a damaged row ends nobody's reading of the others.

A CheckedJson reads as nothing where it holds what its table does not put there; who must tell asks `isinstance(value, Unread)`.
A ParsedJson, which nothing can stand for, reads as an UnreadValue there: `required` raises, `readable` goes on without it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, TypeAdapter, ValidationError
from sqlalchemy import BigInteger, ColumnElement, Dialect, Numeric, TypeDecorator, and_, case, cast, func
from sqlalchemy.dialects.postgresql import JSONB

from contract.compatibility.lenient_documents import sent, why_unreadable

T = TypeVar("T")


def _moment(text: str) -> str:
    if datetime.fromisoformat(text).tzinfo is None:
        raise ValueError("says no time zone")
    return text


Moment = Annotated[str, AfterValidator(_moment)]  # as JSON holds it


class Unread:
    """What stands for a value that cannot be read. It equals nothing else, so that whatever is set instead is written."""

    def __eq__(self, other: object) -> bool:
        return self is other

    def __ne__(self, other: object) -> bool:
        return self is not other


class UnreadList(Unread, list[Any]):
    pass


class UnreadDict(Unread, dict[str, Any]):
    pass


@dataclass(frozen=True)
class UnreadValue(Unread):
    """A value that its model cannot read. `why` says so in words, with the column."""

    why: str


class ResultUnreadable(ValueError):
    """A stored value that cannot be done without cannot be read."""


def required(value: T | UnreadValue, whose: str = "") -> T:
    """The value of a ParsedJson. `whose` begins the message. Raises ResultUnreadable."""
    if isinstance(value, UnreadValue):
        raise ResultUnreadable(f"{whose}{value.why}")
    return value


def readable(value: T | UnreadValue) -> T | None:
    """The same; None where it cannot be read."""
    return None if isinstance(value, UnreadValue) else value


def number_in(value: ColumnElement[Any], most: int) -> ColumnElement[int | None]:
    """SQL: the whole number from 1 to `most` that a JSON value is, which is null where it is none. A cast alone would end the
    whole statement."""
    number = cast(case((func.jsonb_typeof(value) == "number", value.astext)), Numeric)
    return case((and_(number.between(1, most), number == func.trunc(number)), cast(number, BigInteger)))


class CheckedJson(TypeDecorator[Any]):
    """JSON that `of` validates; `unread` is given where it does not."""

    impl = JSONB
    cache_ok = True

    class comparator_factory(JSONB.Comparator[Any]):  # SQLAlchemy's name
        """A value inside the JSON, `column["name"]`, is plain JSON again."""

        def _setup_getitem(self, index: Any) -> Any:
            operator, adjusted, _ = super()._setup_getitem(index)
            return operator, adjusted, JSONB()

    def __init__(self, of: TypeAdapter[Any], unread: type[Unread], none_as_null: bool = False) -> None:
        super().__init__(none_as_null=none_as_null)
        self.of, self.unread, self.none_as_null = of, unread, none_as_null

    def process_result_value(self, value: Any, dialect: Dialect) -> Any:
        return self.read(value)

    def read(self, value: Any) -> Any:
        """The same of a value that the driver read without SQLAlchemy."""
        if value is None and self.none_as_null:
            return None
        try:
            self.of.validate_python(value, strict=True)  # a number that is a text is none
        except ValidationError:
            return self.unread()
        return value


def _dumped(value: BaseModel) -> Any:
    return value.model_dump(mode="json")


class ParsedJson(CheckedJson):
    """JSON that reads as what `of` makes of it, or as an UnreadValue. `name` says what it is in words. Models, and those in
    lists, are written as `dump` says. Fields of a newer version are left out; `keeps_newer`: models keep them, and they are
    written again with the rest, in place of `dump`."""

    cache_ok = True

    def __init__(
        self,
        of: TypeAdapter[Any],
        name: str,
        none_as_null: bool = False,
        dump: Callable[[Any], Any] = _dumped,
        keeps_newer: bool = False,
    ) -> None:
        super().__init__(of, UnreadValue, none_as_null)
        self.name, self.dump, self.keeps_newer = name, sent if keeps_newer else dump, keeps_newer

    def of_value(self, value: Any) -> TypeAdapter[Any]:
        """What reads this value."""
        return self.of

    def process_bind_param(self, value: Any, dialect: Dialect) -> Any:
        if isinstance(value, list):
            return [self.process_bind_param(one, dialect) for one in value]
        return self.dump(value) if isinstance(value, BaseModel) else value

    def read(self, value: Any) -> Any:
        if value is None and self.none_as_null:
            return None
        try:
            return self.of_value(value).validate_python(value, extra="allow" if self.keeps_newer else None)
        except ValidationError as error:
            return UnreadValue(f"the stored {self.name} cannot be read ({why_unreadable(error)})")
