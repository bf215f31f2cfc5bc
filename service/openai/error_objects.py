"""Translates a problem into OpenAI's error object. Knows nothing beyond the problem itself."""

from fastapi import Request
from fastapi.responses import JSONResponse

from service.http.openai_ids import OpenAiIds
from service.http.problems import FieldError, Invalid, Problem
from service.openai.id_translation import ids_of

PREFIX = "/openai/v1"
# where OpenAI's SDK asks whose base_url ends in /v1 or in the address
MISSED = ("/v1/chat/", "/v1/completions", "/v1/fine_tuning/", "/chat/", "/completions", "/fine_tuning/")
_KINDS = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}
_TAKEN_UP_AGAIN = ("idempotency_in_flight",)  # a transient conflict, which the SDK should retry
_NAMES = {  # OpenAI's names of our fields
    "base_model": "model",
    "dataset.file_id": "training_file",
    "dataset.validation_file_id": "validation_file",
    "labels": "metadata",
}
_WORDS = (("objective.type to sft", "method.type to supervised"), ("objective.type", "method.type"))


def render_problem(request: Request, problem: Problem, headers: dict[str, str]) -> JSONResponse:
    return error_response(problem, headers, ids_of(request))


def render_missed(request: Request, problem: Problem, headers: dict[str, str]) -> JSONResponse:
    """The error response at one of the addresses MISSED, where the SDK shows the message of no other form."""
    if problem.code == "route_unknown":
        problem.detail = f"There is no {request.url.path} here: OpenAI's API is below {PREFIX}, so that is how base_url ends."
    return render_problem(request, problem, headers)


def error_response(problem: Problem, headers: dict[str, str], ids: OpenAiIds) -> JSONResponse:
    """The error response. OpenAI's SDK retries 409 and 429, so only errors that a retry may fix get these statuses."""
    status = problem.status
    if status == 422 or (status == 409 and problem.code not in _TAKEN_UP_AGAIN):
        status = 400
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
    if not problem.errors or problem.errors[0].field not in _NAMES:
        return problem.detail
    said = problem.errors[0].message
    for ours, theirs in _WORDS:
        said = said.replace(ours, theirs)
    return f"{_param(problem.errors[0])}: {said}"
