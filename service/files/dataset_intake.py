"""Data set intake: streams an upload into storage while checking its lines; memory holds one line and one block.

A byte order mark and blank lines are dropped: a stored file holds rows alone.

Knows storage and rows. Knows no HTTP and no tenants.
"""

from codecs import BOM_UTF8
from dataclasses import dataclass, field, replace

from contract.wording.other_formats import FIRST_BYTES, JSONL, ONE_A_LINE, TO_ROWS, other_format
from service.files.row_checks import Format, check_row
from service.files.row_values import RowMistake
from service.http.problems import FieldError, Invalid, TooLarge, shown
from service.settings import Settings
from service.storage.object_store import Incoming, Stored

MAX_ERRORS = 100


@dataclass(frozen=True)
class IntakeLimits:
    """Limits of one file: total bytes, rows, and bytes per line."""

    bytes: int
    rows: int
    line_bytes: int

    @classmethod
    def of(cls, settings: Settings) -> "IntakeLimits":
        return cls(settings.max_file_bytes, settings.max_file_rows, settings.max_line_bytes)


class FileInvalid(Invalid):
    """Rows are wrong. `errors` lists the first 100 mistakes by line; `error_count` is the total."""

    code, title = "file_invalid", "The file is not a data set"


class FileTooLarge(TooLarge):
    code = "file_too_large"

    @classmethod
    def bytes(cls, limit: int) -> "FileTooLarge":
        return cls(f"A file may have at most {limit} bytes; split it.", limit=limit)

    @classmethod
    def rows(cls, limit: int) -> "FileTooLarge":
        return cls(f"A file may have at most {limit} rows; split it.", limit=limit)


@dataclass(frozen=True)
class CheckedDataSet:
    """A complete, valid file in storage. prompt_bytes: of all prompts of preferences. tools_line: its first row with tools."""

    format: Format
    rows: int
    stored: Stored
    prompt_bytes: int = 0
    tools_line: int | None = None


@dataclass
class RowCheck:
    """Checks a file's lines as its bytes arrive."""

    limits: IntakeLimits
    rows: int = 0
    lines: int = 0  # of the upload, blank ones included: errors are told by them
    format: Format | None = None  # of the first row that has one
    prompt_bytes: int = 0
    tools_line: int | None = None  # of the stored file
    error_count: int = 0
    errors: list[FieldError] = field(default_factory=list)
    tail: bytes = b""
    _rest: bytes = b""
    _overlong: bool = False  # the current line is too long; its rest is skipped

    def feed(self, block: bytes) -> bytes:
        """Check the lines that end in this block; returns those to keep. Raises FileTooLarge at the first row beyond the
        limit, and FileInvalid where the file is of another format by its first bytes."""
        *lines, rest = block.split(b"\n")
        if lines:
            lines[0] = self._rest + lines[0]
            self._rest = b""
        kept = b"".join([row + b"\n" for line in lines if (row := self._line(line)) is not None])
        self._rest += rest
        if len(self._rest) > self.limits.line_bytes:
            self._overlong, self._rest = True, self._rest.lstrip()[:FIRST_BYTES]
        return kept

    def finish(self) -> Format:
        """The file's format; `tail` is then what to keep of a last line without a newline. Raises FileInvalid with the mistakes
        found."""
        if self._rest or self._overlong:
            self.tail = self._line(self._rest) or b""
            self._rest = b""
        if self.rows == 0:
            raise FileInvalid([FieldError(field="file", code="empty_file", message="holds no rows")], error_count=1)
        if self.errors:
            raise FileInvalid(self.errors, error_count=self.error_count)
        assert self.format is not None  # a row without a format would have been an error
        return self.format

    def _line(self, line: bytes) -> bytes | None:
        """Check one line; returns the row, None where the line is blank."""
        self.lines += 1
        if self.lines == 1:
            line = line.removeprefix(BOM_UTF8)
        if not self._overlong and not line.strip():
            return None
        if self.rows == 0 and (said := other_format(line.lstrip())):
            raise FileInvalid([FieldError(field="file", code="format_not_taken", message=said)], error_count=1)
        self.rows += 1
        if self.rows > self.limits.rows:
            raise FileTooLarge.rows(self.limits.rows)
        if self._overlong or len(line) > self.limits.line_bytes:
            self._overlong = False
            limit = f"has more than {self.limits.line_bytes} bytes, the limit of a line"
            message = f"{limit}; shorten the row, or split it; where several rows are in it, {ONE_A_LINE}"
            self._note([RowMistake(None, "line_too_long", message)])
            return line
        format, errors, prompt_bytes, tools = check_row(line)
        if self.rows == 1 and errors and errors[0].code == "not_json" and not line.lstrip().startswith(b'{"'):
            advice = f"{errors[0].message}; {JSONL}: convert CSV, or JSON that takes several lines a row: {TO_ROWS}"
            errors = [replace(errors[0], message=advice)]
        self.prompt_bytes += prompt_bytes
        if tools and self.tools_line is None:
            self.tools_line = self.rows
        if format is not None and self.format is None:
            self.format = format
        if format is not None and format != self.format:
            message = f"is a {format} row, but the file began with {self.format} rows; a file has one format"
            errors.append(RowMistake(None, "mixed_formats", message))
        self._note(errors)
        return line

    def _note(self, errors: list[RowMistake]) -> None:
        self.error_count += len(errors)
        for error in errors[: MAX_ERRORS - len(self.errors)]:
            path = None if error.path is None else shown(error.path)
            self.errors.append(FieldError(line=self.lines, field=path, code=error.code, message=error.message))


class Intake:
    """One upload. `abandon` removes it unless `finish` succeeded."""

    wanted = "the data set"
    usual_name = "data.jsonl"

    def __init__(self, incoming: Incoming, limits: IntakeLimits) -> None:
        self._incoming, self._check, self._limits = incoming, RowCheck(limits), limits
        self._bytes = 0

    def feed(self, block: bytes) -> None:
        """Write and check the next bytes. Raises FileTooLarge beyond the limit of bytes or rows, and FileInvalid where the file
        is of another format by its first bytes."""
        self._bytes += len(block)
        if self._bytes > self._limits.bytes:
            raise FileTooLarge.bytes(self._limits.bytes)
        self._incoming.write(self._check.feed(block))

    def finish(self) -> CheckedDataSet:
        """Commit the upload as a stored data set. Raises FileInvalid."""
        format = self._check.finish()
        self._incoming.write(self._check.tail)
        check = self._check
        return CheckedDataSet(format, check.rows, self._incoming.commit(), check.prompt_bytes, check.tools_line)

    def abandon(self) -> None:
        self._incoming.abandon()
