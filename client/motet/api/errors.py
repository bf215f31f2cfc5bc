"""Errors that users of Motet meet, each with one readable sentence. Knows no HTTP library and no terminal."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


class MotetError(Exception):
    """Base of all errors of this package. Its text is one or a few sentences for a person."""


class Unreachable(MotetError):
    """The service did not answer."""


class NoCredentials(MotetError):
    """No API address or no key was found."""


class DownloadDamaged(MotetError):
    """A downloaded file does not match the manifest."""


class TaskNotDone(MotetError):
    """The task had not ended when the wait timed out."""


@dataclass(frozen=True)
class FieldProblem:
    """One mistake that the service found in a field of the body or on a line of a file."""

    message: str
    code: str = ""
    field: str | None = None
    line: int | None = None

    def __str__(self) -> str:
        where = [f"line {self.line}"] if self.line is not None else []
        where += [self.field] if self.field is not None else []
        return f"{', '.join(where)}: {self.message}" if where else self.message


class ApiError(MotetError):
    """The service refused a request (RFC 9457 problem details).

    `status` is the HTTP status, `code` the stable identifier for programs, `detail` the sentence for people, `errors` the
    single mistakes, `problem` the whole body as received.
    """

    def __init__(self, status: int, problem: Mapping[str, Any]) -> None:
        self.status = status
        self.problem = dict(problem)
        self.code = str(problem.get("code") or "")
        self.title = str(problem.get("title") or f"HTTP {status}")
        self.detail = str(problem.get("detail") or self.title)
        self.request_id: str | None = problem.get("request_id")
        self.errors = [
            FieldProblem(str(e.get("message", "")), str(e.get("code", "")), e.get("field"), e.get("line"))
            for e in problem.get("errors") or []
        ]
        super().__init__(self._sentence())

    def _sentence(self) -> str:
        if len(self.errors) > 1:
            return "\n  ".join([f"{self.title}:", *map(str, self.errors)])
        return self.detail
