"""Exception handlers: turn every exception of a request into a problem response, also FastAPI's and the database's."""

import errno
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import UnionType
from typing import Any, cast, get_args, get_origin, get_type_hints

import psycopg
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from psycopg.errors import IdleInTransactionSessionTimeout
from pydantic import BaseModel, ValidationError
from sqlalchemy.exc import DataError, InternalError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.routing import Match, Route

from contract.values.strict_json import too_many_digits
from contract.wording import field_mistakes
from service.database.checked_json import ResultUnreadable
from service.http.middleware import request_id
from service.http.problems import MEDIA_TYPE, BadRequest, FieldError, Invalid, NotFound, Problem, Unavailable, shown, summary

log = logging.getLogger(__name__)

RENDERER = "problem_renderer"  # key in a request's state, where a route puts (request, problem, headers) -> Response
DATABASE_ERRORS = (OperationalError, PoolTimeout)  # it does not answer, or has no room
_MAX_ERRORS = 100
_HTTP_CODES = {404: "route_unknown", 405: "method_not_allowed", 413: "too_large"}
_HTTP_TITLES = {404: "No such route", 405: "Not that way", 413: "The body is larger than the limit"}


class JsonInvalid(BadRequest):
    code, title = "json_invalid", "The body is not JSON"


class DatabaseAway(Unavailable):
    code = "database_unavailable"


class DatabaseFull(Unavailable):
    code, title = "database_full", "The database has no room"


class ValueUnreadable(Problem):
    status, code, title = 500, "value_unreadable", "A stored value cannot be read"


class StorageFull(Problem):
    status, code, title = 507, "storage_full", "There is no room to store this"


class Unstorable(Invalid):
    code = "unstorable"


Renderer = Callable[[Request, Problem, Mapping[str, str]], Response]
# by path prefix: a problem with its headers
ErrorFormats = Mapping[str, Callable[[Request, Problem, dict[str, str]], JSONResponse]]


def install(app: FastAPI, formats: ErrorFormats, for_browsers: Renderer) -> None:
    """Add the exception handlers to the app. Paths with a prefix in `formats` answer errors in another API's format; a browser
    that opens any other address gets the problem from `for_browsers`."""
    app.state.error_formats, app.state.error_page = formats, for_browsers
    app.add_exception_handler(Problem, problem_response)  # type: ignore[arg-type]
    app.add_exception_handler(RequestValidationError, _invalid)  # type: ignore[arg-type]
    app.add_exception_handler(HTTPException, _http)  # type: ignore[arg-type]
    for kind in DATABASE_ERRORS:
        app.add_exception_handler(kind, _database_away)
    app.add_exception_handler(InternalError, _cut_off)  # type: ignore[arg-type]
    app.add_exception_handler(DataError, _unstorable)
    app.add_exception_handler(OSError, _file_system)  # type: ignore[arg-type]
    app.add_exception_handler(ClientDisconnect, _gone)
    app.add_exception_handler(ResultUnreadable, _unreadable)
    app.add_exception_handler(Exception, _unforeseen)


def problem_response(request: Request, problem: Problem) -> Response:
    """The problem as a response, in the error format of the called API, or as the route itself renders problems."""
    id = request_id(request.scope)
    headers = problem.headers | {"x-request-id": id}
    if (render := request.scope["state"].get(RENDERER)) is not None:
        return cast(Response, render(request, problem, headers))
    formats: ErrorFormats = request.app.state.error_formats
    for prefix, formatted in formats.items():
        if request.url.path.startswith(prefix):
            return formatted(request, problem, headers)
    if opened_by_browser(request):
        return cast(Response, request.app.state.error_page(request, problem, headers))
    return JSONResponse(problem.body(id), problem.status, headers, media_type=MEDIA_TYPE)


def opened_by_browser(request: Request) -> bool:
    """Whether a browser opens the address; programs and scripts do not ask so."""
    return "text/html" in request.headers.get("accept", "")


def _unreadable(request: Request, error: Exception) -> Response:
    log.error("request %s: %s", request_id(request.scope), error)
    return problem_response(request, ValueUnreadable(f"{error}. An operator can write it anew in the database."))


def _unforeseen(request: Request, error: Exception) -> Response:
    """Answer an unexpected exception; uvicorn logs its traceback afterwards."""
    return problem_response(
        request, Problem(f"This is our fault. Please report it with the request id {request_id(request.scope)}.")
    )


def database_problem(error: Exception, asked: str) -> Problem:
    """What a caller is told of one of DATABASE_ERRORS, which is logged. `asked`: the id of the HTTP request."""
    log.error("request %s: the database did not answer: %s", asked, str(error).splitlines()[0])
    if isinstance(getattr(error, "orig", None), psycopg.errors.DiskFull):
        said = "The database's disk is full. Nothing was changed; it goes on once an operator has made room."
        return DatabaseFull(said, retry_after=30)
    said = "The database does not answer in time; try again shortly, with the same Idempotency-Key if there is one."
    return DatabaseAway(said)


def _database_away(request: Request, error: Exception) -> Response:
    return problem_response(request, database_problem(error, request_id(request.scope)))


def _cut_off(request: Request, error: InternalError) -> Response:
    """Answer 503 when Postgres ended a session that was idle in a transaction for too long."""
    if isinstance(error.orig, IdleInTransactionSessionTimeout):
        return _database_away(request, error)
    log.error("request %s failed", request_id(request.scope), exc_info=error)
    return _unforeseen(request, error)


def _unstorable(request: Request, error: Exception) -> Response:
    log.warning("request %s: refused by the database: %s", request_id(request.scope), str(error).splitlines()[0])
    if any("\0" in str(value) for value in request.path_params.values()):
        return problem_response(request, NotFound(f"There is no {shown(request.url.path)!r}: it holds a NUL character."))
    for name, value in request.query_params.multi_items():
        if "\0" in value:
            refused = FieldError(field=shown(name), code="unstorable", message="(query) holds a NUL character")
            return problem_response(request, Unstorable([refused]))
    message = "a value cannot be stored: a text holds a NUL character, or a number is too large"
    return problem_response(request, Unstorable([FieldError(code="unstorable", message=message)]))


def _file_system(request: Request, error: OSError) -> Response:
    if error.errno not in (errno.ENOSPC, errno.EDQUOT):
        log.error("request %s failed", request_id(request.scope), exc_info=error)
        return _unforeseen(request, error)
    log.error("request %s: storage is full: %s", request_id(request.scope), error)
    return problem_response(request, StorageFull("Storage is full. Nothing was kept; an operator has to make room."))


def _gone(request: Request, error: Exception) -> Response:
    return Response(status_code=400)  # the client has disconnected


def _http(request: Request, error: HTTPException) -> Response:
    """Answer the exceptions that FastAPI and starlette raise themselves."""
    if isinstance(error.__cause__, Problem):  # found as FastAPI read the body
        return problem_response(request, error.__cause__)
    if isinstance(error.__cause__, DATABASE_ERRORS):  # met by a gate, who admits the sender then
        return _database_away(request, error.__cause__)
    detail = str(error.detail)
    if error.status_code == 404:
        detail = f"There is no {request.url.path} here; /openapi.json lists what there is below /v1."
    elif error.status_code == 405:
        allowed = ", ".join(_methods_of(request))
        detail = f"{request.url.path} does not take {request.method}; it takes {allowed}."
        return problem_response(request, _of_status(405)(detail, headers={"Allow": allowed}))
    elif error.status_code == 400 and isinstance(error.__cause__, UnicodeDecodeError):
        detail = f"The body is not UTF-8: {error.__cause__.reason} at byte {error.__cause__.start}."
    elif error.status_code == 400 and isinstance(error.__cause__, RecursionError):
        detail = "The body has more arrays and objects within each other than can be read."
    elif error.status_code == 400 and isinstance(error.__cause__, ValueError):  # of int: json's own mistakes come as others
        detail = f"The body {too_many_digits()}."
    elif error.status_code == 400 and error.__cause__ is not None:
        detail = f"The body cannot be read: {error.__cause__}."
    return problem_response(request, _of_status(error.status_code)(detail, headers=dict(error.headers or {})))


def _methods_of(request: Request) -> list[str]:
    """Every method that any route accepts at this path; starlette's 405 names one route's methods only."""
    found: set[str] = set()
    for route in request.app.routes:
        if isinstance(route, Route) and route.matches(request.scope)[0] is not Match.NONE:
            found |= route.methods or set()
    return sorted(found)


def _of_status(number: int) -> type[Problem]:
    title = _HTTP_TITLES.get(number, "The request cannot be answered")
    members = {"status": number, "code": _HTTP_CODES.get(number, "bad_request"), "title": title}
    return type("HttpProblem", (Problem,), members)


def _invalid(request: Request, error: RequestValidationError) -> Response:
    found = field_mistakes.without_echoes(error.errors())
    if found and found[0]["type"] == "json_invalid":
        return problem_response(request, _json_invalid(str(error.body), int(found[0]["loc"][1]), found[0]["ctx"]["error"]))
    if found and tuple(found[0]["loc"]) == ("body",) and "json" not in request.headers.get("content-type", ""):
        return problem_response(
            request, BadRequest("The body must be JSON, sent with the header `Content-Type: application/json`.")
        )
    if found and tuple(found[0]["loc"]) == ("body",) and found[0]["type"] == "missing":
        return problem_response(request, BadRequest("The body is empty; it must be JSON."))
    models = _models_of(request)
    errors = _by_field([field_error(one, models) for one in found[:_MAX_ERRORS]])
    if len(found) > _MAX_ERRORS:
        detail = f"{len(found)} errors; the first {_MAX_ERRORS} are listed"
        return problem_response(request, Invalid(errors, detail, error_count=len(found)))
    return problem_response(request, Invalid(errors, summary(errors), error_count=len(errors)))


def _json_invalid(text: str, position: int, message: str) -> JsonInvalid:
    message = message.removesuffix(" at")  # the parser's own, where a position followed
    line, column = text.count("\n", 0, position) + 1, position - text.rfind("\n", 0, position)
    error = FieldError(line=line, code="json_invalid", message=f"column {column}: {message}")
    return JsonInvalid(f"The body is not JSON: {message} at line {line}, column {column}.", [error])


def field_error(found: Mapping[str, Any], models: Sequence[type[BaseModel]]) -> FieldError:
    """Convert a pydantic error: a readable path, the given value, and a hint."""
    where, *path = found["loc"]
    at, unknown = (path[:-1], path[-1:]) if found["type"] == "extra_forbidden" else (path, [])
    sent, known = _as_sent(at, models) if where == "body" else (at, [])
    message = field_mistakes.message(found, known)
    if where != "body":
        message = f"({where}) {message}"
    field = _dotted([*sent, *unknown]) or (field_mistakes.named_in(message, known) if found["type"] == "value_error" else None)
    return FieldError(field=field, code=found["type"], message=message)


def invalid_body(error: ValidationError, model: type[BaseModel]) -> Invalid:
    """The problem of a body that is not a `model`."""
    found = field_mistakes.without_echoes(error.errors())
    return Invalid(_by_field([field_error({**one, "loc": ("body", *one["loc"])}, [model]) for one in found]))


def _by_field(errors: Sequence[FieldError]) -> list[FieldError]:
    """Members of a union each say what they want of a value: said as one error, since any of them would do."""
    made: list[FieldError] = []
    for error in errors:
        before = made[-1] if made and made[-1].field == error.field is not None else None
        (said, _, got), (more, _, also) = (one.message.rpartition(", got ") if one else ("", "", "") for one in (before, error))
        if before is not None and said and more and got == also:
            made[-1] = before.model_copy(update={"message": f"{said}, or {more}, got {got}"})
        else:
            made.append(error)
    return made


def _dotted(path: Sequence[str | int]) -> str:
    return "".join(f"[{part}]" if isinstance(part, int) else f".{shown(part)}" for part in path).removeprefix(".")


def _models_of(request: Request) -> list[type[BaseModel]]:
    """The pydantic models among the called route's parameters; not those that dependencies give it, as the settings."""
    hints = get_type_hints(request.scope["route"].endpoint, include_extras=True)
    plain = [hint for name, hint in hints.items() if name != "return" and get_origin(hint) in (None, UnionType)]
    return list(_models_in(plain))


def _as_sent(path: Sequence[str | int], models: Sequence[type[BaseModel]]) -> tuple[list[str | int], list[str]]:
    """The path below any of `models` without pydantic's names of unions' members, which stand in no request; and the names of
    the fields there."""
    kept: list[str | int] = []
    hints: list[Any] = list(models)
    for part in path:
        tagged = [model for hint in hints for model in _tagged(hint, part)]
        fields = [model.model_fields[part] for model in _models_in(hints) if part in model.model_fields]
        if not kept and not fields:
            return list(path), []
        if isinstance(part, int) or (not tagged and (fields or any(map(_holds_any_name, hints)))):
            kept.append(part)
        hints = tagged or [field.annotation for field in fields] or hints
    return kept, sorted({name for model in _models_in(hints) for name in model.model_fields})


def _tagged(hint: Any, part: str | int) -> Iterator[type[BaseModel]]:
    """The members of discriminated unions in this type that have this tag."""
    for said in getattr(hint, "__metadata__", ()):
        if name := getattr(said, "discriminator", None):
            yield from (model for model in _models_in([hint]) if part in get_args(model.model_fields[name].annotation))
    for inner in get_args(hint):
        yield from _tagged(inner, part)


def _holds_any_name(hint: Any) -> bool:
    return hint in (Any, dict) or get_origin(hint) is dict or any(map(_holds_any_name, get_args(hint)))


def _models_in(hints: Iterable[Any]) -> Iterator[type[BaseModel]]:
    for hint in hints:
        if isinstance(hint, type) and issubclass(hint, BaseModel):
            yield hint
        yield from _models_in(get_args(hint))
