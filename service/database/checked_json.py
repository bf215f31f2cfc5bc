"""JSON columns that read as nothing where they hold what their table does not put there: a damaged row ends nobody's reading of
the others. Who reads such a value asks `isinstance(value, Unread)`."""

from datetime import datetime
from typing import Annotated, Any

from pydantic import AfterValidator, TypeAdapter, ValidationError
from sqlalchemy import Dialect, TypeDecorator
from sqlalchemy.dialects.postgresql import JSONB


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


class CheckedJson(TypeDecorator[Any]):
    """JSON that `of` validates; `unread` is given where it does not."""

    impl = JSONB
    cache_ok = True

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
