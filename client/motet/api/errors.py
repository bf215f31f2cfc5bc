"""Errors that users of Motet meet, each with one readable sentence. Knows no HTTP library and no terminal."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_RUNS = 5  # runs of lines that a mistake names
_ON_A_LINE = 3  # mistakes; more get a line each


class MotetError(Exception):
    """Base of all errors of this package. Its text is one or a few sentences for a person."""


class Unreachable(MotetError):
    """The service did not answer."""


class NoCredentials(MotetError):
    """No API address or no usable key was found."""


class BadId(MotetError):
    """What was given as an id cannot be one."""


class DownloadDamaged(MotetError):
    """A downloaded file does not match the manifest."""


class TaskNotDone(MotetError):
    """The task had not ended when the wait timed out."""


class FileNotReady(MotetError):
    """An import failed, or had not ended when the wait timed out."""


class MergedModelNotReady(MotetError):
    """An adapter could not be added to its base, or is not yet."""


class HubPushFailed(MotetError):
    """Something could not be pushed to the hub, or had not been when the wait timed out."""


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
    single mistakes, `problem` the whole body as received. `about` names what was sent, such as a file.
    """

    def __init__(self, status: int, problem: Mapping[str, Any], about: str | None = None) -> None:
        self.status = status
        self.about = about
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
        about = f"{self.about}: " if self.about is not None else ""
        if len(self.errors) < 2:
            return f"{about}{self.detail}"
        alike: dict[tuple[str | None, str], list[int]] = {}
        for error in self.errors:
            alike.setdefault((error.field, error.message), []).extend([] if error.line is None else [error.line])
        told = [_told(field, message, lines) for (field, message), lines in alike.items()]
        more = int(self.problem.get("error_count") or 0) - len(self.errors)
        told += [f"and {more:,} more mistakes"] if more > 0 else []
        if len(told) <= _ON_A_LINE:
            return f"{about}{self.title}: {'; '.join(told)}"
        return "\n  ".join([f"{about}{self.title}:", *told])


class NotMotet(ApiError):
    """Something answered that is no Motet of this version: another program at this address, or a proxy before it."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(status, {"detail": detail})


def _told(field: str | None, message: str, lines: list[int]) -> str:
    """One mistake, with all lines that have it."""
    if len(lines) < 2:
        return str(FieldProblem(message, field=field, line=lines[0] if lines else None))
    runs: list[list[int]] = []
    for line in lines:
        if runs and line <= runs[-1][1] + 1:
            runs[-1][1] = line
        else:
            runs.append([line, line])
    named = [str(first) if first == last else f"{first} to {last}" for first, last in runs[:_RUNS]]
    where = f"lines {', '.join(named)}{f' and {len(runs) - _RUNS} more places' if len(runs) > _RUNS else ''}"
    return f"{where}{f', {field}' if field is not None else ''}: {message}"
