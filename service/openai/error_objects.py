"""Translates a problem into OpenAI's error object. Knows nothing beyond the problem itself."""

from fastapi import Request
from fastapi.responses import JSONResponse

from service.http.openai_ids import OpenAiIds
from service.http.problems import FieldError, Invalid, Problem
from service.openai.id_translation import ids_of

PREFIX = "/openai/v1"
_KINDS = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}
_TAKEN_UP_AGAIN = ("idempotency_in_flight",)  # a transient conflict, which the SDK should retry
_NAMES = {  # OpenAI's names of our fields
    "base_model": "model",
    "dataset.file_id": "training_file",
    "dataset.validation_file_id": "validation_file",
    "labels": "metadata",
}


def render_problem(request: Request, problem: Problem, headers: dict[str, str]) -> JSONResponse:
    return error_response(problem, headers, ids_of(request))


def error_response(problem: Problem, headers: dict[str, str], ids: OpenAiIds) -> JSONResponse:
    """The error response. OpenAI's SDK retries 409 and 429, so only errors that a retry may fix get these statuses."""
    status = problem.status
    if status == 422 or (status == 409 and problem.code not in _TAKEN_UP_AGAIN):
        status = 400
    if problem.code == "quota_exceeded":
        headers["x-should-retry"] = "false"
    error = {
        "message": ids.in_text(_message(problem)),
        "type": _KINDS.get(status, "invalid_request_error" if status < 500 else "server_error"),
        "param": _param(problem.errors[0]) if problem.errors else None,
        "code": problem.errors[0].code if problem.errors and problem.code == Invalid.code else problem.code,
    }
    return JSONResponse({"error": error}, status, headers)


def _param(error: FieldError) -> str | None:
    return _NAMES.get(error.field or "", error.field)


def _message(problem: Problem) -> str:
    """The problem's detail, with OpenAI's name of its field."""
    if problem.errors and problem.errors[0].field in _NAMES:
        return f"{_param(problem.errors[0])}: {problem.errors[0].message}"
    return problem.detail
