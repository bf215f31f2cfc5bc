"""Exception handlers: turn every exception of a request into a problem response, also FastAPI's and the database's."""

import errno
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast, get_args, get_type_hints

import psycopg
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from psycopg.errors import IdleInTransactionSessionTimeout
from pydantic import BaseModel
from sqlalchemy.exc import DataError, InternalError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.routing import Match, Route

from contract.wording import field_mistakes
from service.http.middleware import request_id
from service.http.problems import MEDIA_TYPE, BadRequest, FieldError, Invalid, Problem, Unavailable, shown, summary

log = logging.getLogger(__name__)

RENDERER = "problem_renderer"  # key in a request's state, where a route puts (request, problem, headers) -> Response
_MAX_ERRORS = 100
_HTTP_CODES = {404: "route_unknown", 405: "method_not_allowed", 413: "too_large"}
_HTTP_TITLES = {404: "No such route", 405: "Not that way", 413: "The body is larger than the limit"}


class JsonInvalid(BadRequest):
    code, title = "json_invalid", "The body is not JSON"


class DatabaseAway(Unavailable):
    code = "database_unavailable"


class DatabaseFull(Unavailable):
    code, title = "database_full", "The database has no room"


class StorageFull(Problem):
    status, code, title = 507, "storage_full", "There is no room to store this"


class Unstorable(Invalid):
    code = "unstorable"


Renderer = Callable[[Request, Problem, Mapping[str, str]], Response]
ErrorFormats = Mapping[str, Callable[[Problem, dict[str, str]], JSONResponse]]  # by path prefix: a problem with its headers


def install(app: FastAPI, formats: ErrorFormats, for_browsers: Renderer) -> None:
    """Add the exception handlers to the app. Paths with a prefix in `formats` answer errors in another API's format; a browser
    that opens any other address gets the problem from `for_browsers`."""
    app.state.error_formats, app.state.error_page = formats, for_browsers
    app.add_exception_handler(Problem, _problem)  # type: ignore[arg-type]
    app.add_exception_handler(RequestValidationError, _invalid)  # type: ignore[arg-type]
    app.add_exception_handler(HTTPException, _http)  # type: ignore[arg-type]
    app.add_exception_handler(OperationalError, _database_away)
    app.add_exception_handler(PoolTimeout, _database_away)
    app.add_exception_handler(InternalError, _cut_off)  # type: ignore[arg-type]
    app.add_exception_handler(DataError, _unstorable)
    app.add_exception_handler(OSError, _file_system)  # type: ignore[arg-type]
    app.add_exception_handler(ClientDisconnect, _gone)
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
            return formatted(problem, headers)
    if opened_by_browser(request):
        return cast(Response, request.app.state.error_page(request, problem, headers))
    return JSONResponse(problem.body(id), problem.status, headers, media_type=MEDIA_TYPE)


def opened_by_browser(request: Request) -> bool:
    """Whether a browser opens the address; programs and scripts do not ask so."""
    return "text/html" in request.headers.get("accept", "")


def _problem(request: Request, problem: Problem) -> Response:
    return problem_response(request, problem)


def _unforeseen(request: Request, error: Exception) -> Response:
    """Answer an unexpected exception; uvicorn logs its traceback afterwards."""
    return problem_response(
        request, Problem(f"This is our fault. Please report it with the request id {request_id(request.scope)}.")
    )


def _database_away(request: Request, error: Exception) -> Response:
    log.error("request %s: the database did not answer: %s", request_id(request.scope), str(error).splitlines()[0])
    if isinstance(getattr(error, "orig", None), psycopg.errors.DiskFull):
        said = "The database's disk is full. Nothing was changed; it goes on once an operator has made room."
        return problem_response(request, DatabaseFull(said, retry_after=30))
    return problem_response(
        request,
        DatabaseAway("The database does not answer in time; try again shortly, with the same Idempotency-Key if there is one."),
    )


def _cut_off(request: Request, error: InternalError) -> Response:
    """Answer 503 when Postgres ended a session that was idle in a transaction for too long."""
    if isinstance(error.orig, IdleInTransactionSessionTimeout):
        return _database_away(request, error)
    log.error("request %s failed", request_id(request.scope), exc_info=error)
    return _unforeseen(request, error)


def _unstorable(request: Request, error: Exception) -> Response:
    log.warning("request %s: refused by the database: %s", request_id(request.scope), str(error).splitlines()[0])
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
    detail = str(error.detail)
    if error.status_code == 404:
        detail = f"There is no {request.url.path} here; /openapi.json lists what there is."
    elif error.status_code == 405:
        allowed = ", ".join(_methods_of(request))
        detail = f"{request.url.path} does not take {request.method}; it takes {allowed}."
        return problem_response(request, _of_status(405)(detail, headers={"Allow": allowed}))
    elif error.status_code == 400 and isinstance(error.__cause__, UnicodeDecodeError):
        detail = f"The body is not UTF-8: {error.__cause__.reason} at byte {error.__cause__.start}."
    elif error.status_code == 400 and isinstance(error.__cause__, RecursionError):
        detail = "The body has more arrays and objects within each other than can be read."
    elif error.status_code == 400 and error.__cause__ is not None:
        detail = f"The body cannot be read: {error.__cause__}."
    problem = _of_status(error.status_code)(detail, headers=dict(error.headers or {}))
    return problem_response(request, problem)


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
    found = error.errors()
    if found and found[0]["type"] == "json_invalid":
        return problem_response(request, _json_invalid(str(error.body), int(found[0]["loc"][1]), found[0]["ctx"]["error"]))
    if found and tuple(found[0]["loc"]) == ("body",) and "json" not in request.headers.get("content-type", ""):
        return problem_response(
            request, BadRequest("The body must be JSON, sent with the header `Content-Type: application/json`.")
        )
    models = _models_of(request)
    errors = [field_error(one, models) for one in found[:_MAX_ERRORS]]
    detail = summary(errors) if len(found) <= _MAX_ERRORS else f"{len(found)} errors; the first {_MAX_ERRORS} are listed"
    return problem_response(request, Invalid(errors, detail, error_count=len(found)))


def _json_invalid(text: str, position: int, message: str) -> JsonInvalid:
    message = message.removesuffix(" at")  # the parser's own, where a position followed
    line, column = text.count("\n", 0, position) + 1, position - text.rfind("\n", 0, position)
    error = FieldError(line=line, code="json_invalid", message=f"column {column}: {message}")
    return JsonInvalid(f"The body is not JSON: {message} at line {line}, column {column}.", [error])


def field_error(found: Mapping[str, Any], models: Sequence[type[BaseModel]]) -> FieldError:
    """Convert a pydantic error: a readable path, the given value, and a hint."""
    where, *path = found["loc"]
    at = path[:-1] if found["type"] == "extra_forbidden" else path
    message = field_mistakes.message(found, _fields_at(at, models))
    if where != "body":
        message = f"({where}) {message}"
    return FieldError(field=_dotted(path) or None, code=found["type"], message=message)


def _dotted(path: Sequence[str | int]) -> str:
    return "".join(f"[{part}]" if isinstance(part, int) else f".{shown(part)}" for part in path).removeprefix(".")


def _models_of(request: Request) -> list[type[BaseModel]]:
    """The pydantic models among the called route's parameters."""
    hints = get_type_hints(request.scope["route"].endpoint)
    return [hint for hint in hints.values() if isinstance(hint, type) and issubclass(hint, BaseModel)]


def _fields_at(path: Sequence[str | int], models: Sequence[type[BaseModel]]) -> list[str]:
    """The field names of the models found at this path below any of `models`."""
    for part in path:
        if isinstance(part, str):
            hints = [model.model_fields[part].annotation for model in models if part in model.model_fields]
            models = [model for hint in hints for model in _models_in(hint)]
    return sorted({name for model in models for name in model.model_fields})


def _models_in(hint: Any) -> Iterator[type[BaseModel]]:
    if isinstance(hint, type) and issubclass(hint, BaseModel):
        yield hint
    for part in get_args(hint):
        yield from _models_in(part)
