"""Uploaded files and previews of their rows, as the API answers them."""

from datetime import datetime

from pydantic import Field

from contract.strict import Message


class File(Message):
    """An uploaded JSONL data set; immutable."""

    id: str
    name: str
    format: str
    bytes: int
    rows: int
    sha256: str
    created_at: datetime


class RowProblem(Message):
    """What is wrong with a row, or what truncation will remove from it."""

    code: str
    message: str
    line: int | None = None
    field: str | None = None


class FileImportError(Message):
    """Why the last attempt to import a file failed; `errors` are its first wrong lines."""

    code: str
    detail: str
    errors: list[RowProblem] = Field(default=[])
    error_count: int | None = None


class FileImport(Message):
    """A file that was named by its source. Once `status` is `ready`, it is a File with the same id."""

    id: str
    name: str
    status: str  # importing, ready or failed
    rows: int | None = None
    bytes: int | None = None
    sha256: str | None = None
    created_at: datetime
    source: str
    path: str | None = None
    commit: str | None = None
    license: str | None = None
    gated: bool = False
    received_bytes: int
    total_bytes: int | None = None
    attempts: int = 0
    next_attempt_at: datetime | None = None
    error: FileImportError | None = None


class FoundFile(Message):
    """What a source holds, before anything is imported."""

    name: str
    source: str
    path: str | None = None
    commit: str | None = None
    license: str | None = None
    gated: bool = False
    bytes: int | None = None
    sha256: str | None = None


class PreviewSequence(Message):
    """One sequence of the model's input. tokens, pieces (their text) and learned (the loss mask) have one entry per token."""

    answer: str | None = None
    length: int
    trained: int
    labels: int
    truncated: bool
    tokens: list[int]
    pieces: list[str]
    learned: list[bool]


class PreviewRow(Message):
    """One row: one sequence, or two for a preference, one per answer."""

    line: int
    sequences: list[PreviewSequence]
    problem: RowProblem | None = None


class Preview(Message):
    """Rows of a file as a task would train on them."""

    base_model: str
    max_seq_len: int
    rows: list[PreviewRow]
    truncated: int = 0
    skipped: int = Field(default=0, description="Rows with nothing left to learn")
