"""Reads the service's answers: bodies as resources, refusals as errors. Sends nothing."""

from collections.abc import Mapping
from typing import Any, TypeVar

import httpx
from pydantic import BaseModel, ValidationError

from motet.api.errors import ApiError, NotMotet, Unreachable

SEE = "see that the address is a Motet's, of this version, and what stands between"

M = TypeVar("M", bound=BaseModel)


def data_of(frame: bytes) -> bytes | None:
    """The data of a server-sent event's frame; None for a comment."""
    for line in frame.split(b"\n"):
        if line.startswith(b"data: "):
            return line.removeprefix(b"data: ")
    return None


def contents(answer: httpx.Response) -> dict[str, Any]:
    """The body, an object of JSON. Raises NotMotet."""
    try:
        body = answer.json()
    except ValueError:
        body = None
    if not isinstance(body, dict):
        raise NotMotet(answer.status_code, strange(answer))
    return body


def resource(model: type[M], answer: httpx.Response) -> M:
    """The body as this resource. Raises NotMotet."""
    return validated(model, contents(answer), answer.request.url.path)


def validated(model: type[M], body: Any, path: str) -> M:
    """What `path` answered as this resource. Raises NotMotet."""
    try:
        return model.model_validate(body)
    except ValidationError as error:
        raise NotMotet(200, f"{path} answered what is no {model.__name__}; {SEE}") from error


def checked(answer: httpx.Response | Unreachable) -> httpx.Response:
    """The answer, unless it is a refusal: ApiError, or no answer: Unreachable."""
    if isinstance(answer, Unreachable):
        raise answer
    if answer.is_success or answer.status_code == 304:
        return answer
    problem = problem_in(answer)
    raise ApiError(answer.status_code, problem) if problem else NotMotet(answer.status_code, strange(answer))


def problem_in(answer: httpx.Response) -> dict[str, Any]:
    """The problem body, or OpenAI's error as one; empty where the answer is neither, such as a proxy's error page."""
    try:
        body = answer.json()
    except ValueError:
        return {}
    if isinstance(body, dict) and "detail" in body:
        return body
    if isinstance(body, dict) and isinstance(body.get("error"), dict):
        return problem_of(body["error"])
    return {}


def problem_of(error: Mapping[str, Any]) -> dict[str, Any]:
    """OpenAI's error object as a problem body."""
    message, code, param = str(error.get("message")), error.get("code"), error.get("param")
    errors = [{"field": param, "code": code, "message": message}] if param is not None else []
    return {"detail": message, "code": code, "errors": errors}


def strange(answer: httpx.Response) -> str:
    return f"{answer.request.url} answered {answer.status_code} {answer.reason_phrase}, and not in Motet's words; {SEE}"
