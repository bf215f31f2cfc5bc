"""API errors as classes, each with a status, a code and a title; RFC 9457 problem details.

Domain packages subclass these with their own codes. No handler assembles error JSON.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import PydanticCustomError

from contract.wording.field_mistakes import shown as shown
from service.database.checked_json import Unread
from service.database.engine import Base

MEDIA_TYPE = "application/problem+json"


class FieldError(BaseModel):
    """One mistake, and where it stands."""

    field: str | None = Field(default=None, description="Path in the body, or the parameter: search_space.rank[0]")
    line: int | None = Field(default=None, description="Line of an uploaded file or of a JSON body, from 1")
    code: str
    message: str


def unread_columns(row: Base, what: str, *names: str) -> list[FieldError] | None:
    """Those of these columns that cannot be read, as `problems` of the resource, called `what`, that shows them as empty."""
    unread = [name for name in names if isinstance(getattr(row, name), Unread)]
    said = "The stored {0}.{1} of this {2} cannot be read and is shown as empty. An operator can write it anew in the database."
    words = {name: said.format(row.__tablename__, name, what) for name in unread}
    return [FieldError(field=name, code="unreadable", message=message) for name, message in words.items()] or None


AsMade = Annotated[
    list[FieldError] | None,
    Field(
        description="In the answer that makes it: what it is made with all the same, such as a deadline that is over. Of a "
        "task also what of its stored row cannot be read"
    ),
]


class ProblemBody(BaseModel):
    """RFC 9457 problem details. `code` is stable and meant for programs, `detail` for people."""

    model_config = ConfigDict(extra="allow", title="Problem")

    type: str
    title: str
    status: int
    detail: str
    code: str
    errors: list[FieldError] = Field(default=[])
    request_id: str | None = None


class Problem(Exception):
    """Base of all API errors. `extra` becomes further members of the problem body."""

    status: ClassVar[int] = 500
    code: ClassVar[str] = "internal"
    title: ClassVar[str] = "Something went wrong on our side"

    def __init__(
        self, detail: str, errors: Sequence[FieldError] = (), headers: Mapping[str, str] | None = None, **extra: Any
    ) -> None:
        super().__init__(detail)
        self.detail, self.errors, self.headers, self.extra = detail, list(errors), dict(headers or {}), extra

    def body(self, request_id: str | None) -> dict[str, Any]:
        """The problem as JSON-ready values, without empty members."""
        problem = ProblemBody(
            type=f"urn:motet:problem:{self.code}",
            title=self.title,
            status=self.status,
            detail=self.detail,
            code=self.code,
            errors=self.errors,
            request_id=request_id,
        )
        return problem.model_dump(exclude_none=True, exclude_defaults=True) | self.extra

    def kept(self) -> dict[str, Any]:
        """What a row of background work keeps of it."""
        body = self.body(None)
        return {name: body[name] for name in ("code", "detail", "errors", "error_count") if name in body}


class BadRequest(Problem):
    status, code, title = 400, "bad_request", "The request cannot be read"


class Unauthorized(Problem):
    status, code, title = 401, "unauthorized", "The credential is missing or not valid"

    def __init__(self, detail: str, **extra: Any) -> None:
        super().__init__(detail, headers={"WWW-Authenticate": "Bearer"}, **extra)


class Forbidden(Problem):
    status, code, title = 403, "forbidden", "The credential does not allow this"


class NotFound(Problem):
    status, code, title = 404, "not_found", "No such thing"


class Conflict(Problem):
    status, code, title = 409, "conflict", "The present state does not allow this"


class TooLarge(Problem):
    status, code, title = 413, "too_large", "The body is larger than the limit"


class Invalid(Problem):
    """A readable request with wrong values. The detail defaults to a summary of the first error."""

    status, code, title = 422, "invalid", "The request is not valid"

    def __init__(self, errors: Sequence[FieldError], detail: str | None = None, **extra: Any) -> None:
        super().__init__(detail or summary(errors), errors, **extra)


class Unavailable(Problem):
    status, code, title = 503, "unavailable", "The service cannot answer now"

    def __init__(self, detail: str, retry_after: int = 2, **extra: Any) -> None:
        super().__init__(detail, headers={"Retry-After": str(retry_after)}, **extra)


def summary(errors: Sequence[FieldError]) -> str:
    """The first error in words, and the number of others."""
    first = errors[0]
    where = ", ".join(
        part for part in (f"line {first.line}" if first.line is not None else None, first.field) if part is not None
    )
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    return f"{where}: {first.message}{more}" if where else first.message + more


def check_credential(field: str, said: str) -> None:
    """Raise Invalid for one that no header takes."""
    if not all("!" <= letter <= "~" for letter in said):
        raise invalid_field(field, "not_a_token", "may hold printable ASCII alone, without spaces")


def form_error(code: str, message: str, *below: str) -> ValidationError:
    """What the validator of a body's field raises where the value cannot be right whatever is stored or set up: told so, it
    comes together with what else is wrong with the body. `below`: the path from that field, which is one whose values no
    message repeats."""
    found = {"type": PydanticCustomError(code, message), "loc": below, "input": ""}
    return ValidationError.from_exception_data("form", [found])  # type: ignore[list-item]  # mypy knows no mixed dict


def invalid_field(field: str, code: str, message: str) -> Invalid:
    """The problem of one wrong field."""
    return Invalid([FieldError(field=field, code=code, message=message)])
