"""Previews a file's rows as a task would train on them: tokens, their text, the loss mask, truncation. Stores nothing.

Tokens and mask come from contract.rows.row_encoding, which workers also use in training.
"""

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from itertools import islice
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from contract.rows.row_encoding import Tokens, equal, learns, truncate
from contract.rows.tokenizer import RowError, TemplateError, TokenizerError
from contract.strict import Moment, Strict
from contract.task_spec import Name, Objective, Training
from service.files.folder_tokenizer import Loaded, Tokenizers
from service.files.models import File
from service.http.problems import FieldError, invalid_field
from service.storage.downloads import ObjectLost
from service.storage.object_store import ObjectMissing, Storage

MAX_ROWS = 20
SHOWN_TOKENS = 4096  # per sequence
_READ_BYTES = 4 * 2**20  # a preview's limit; a conversation counts once per assistant turn, since each renders it again


class PreviewRequest(Strict):
    """Which rows, and how a task would read them. The names are those of a task's spec."""

    file_id: Name
    base_model: Name
    objective: Objective = Objective()
    max_seq_len: Annotated[int, Field(ge=8, le=131072, strict=True)] = Training().max_seq_len
    first_line: Annotated[int, Field(ge=1, le=2**31 - 1, strict=True)] = 1
    rows: Annotated[int, Field(ge=1, le=MAX_ROWS, strict=True)] = 5
    created_at: Moment | None = Field(
        default=None,
        description="When the task was created, which a chat template's strftime_now writes; left out, a task created now",
    )


class PreviewSequence(BaseModel):
    """What the model reads. `tokens`, `pieces` and `learned` have one entry a token."""

    answer: Literal["chosen", "rejected"] | None = Field(description="Of a preference row, which has one sequence for each")
    length: int = Field(description="Tokens before the cut")
    trained: int = Field(description="Tokens that are left of it")
    labels: int = Field(description="Tokens that are learned, after the cut")
    truncated: bool
    tokens: list[int] = Field(description=f"Ids, after the cut; the first {SHOWN_TOKENS} of them")
    pieces: list[str] = Field(description="The text of each token; a character of several tokens stands with the last of them")
    learned: list[bool] = Field(description="The loss mask: whether the token is a label, predicted from those before it")


class PreviewRow(BaseModel):
    """One row. One with a problem may have no sequences."""

    line: int
    sequences: list[PreviewSequence]
    problem: FieldError | None


class PreviewResource(BaseModel):
    """Rows as a task would train on them."""

    object: Literal["preview"] = "preview"
    file_id: str
    base_model: str
    revision: str
    max_seq_len: int
    rows: list[PreviewRow]
    truncated: int = Field(description="How many of these rows are cut")
    skipped: int = Field(description="How many of them have nothing left to learn, and are left out of training")


def preview(
    storage: Storage, tokenizers: Tokenizers, asked: PreviewRequest, file: File, source: str, revision: str
) -> PreviewResource:
    """Build the preview, without a database. Raises Invalid if the model's tokenizer is unusable, or ObjectLost."""
    try:
        loaded = tokenizers.of(source)
    except TokenizerError as error:
        raise invalid_field("base_model", "tokenizer_unusable", f"{error}; ask an admin") from None
    try:
        lines = list(_lines(storage, file.sha256, asked.first_line, asked.rows))
    except ObjectMissing:
        raise ObjectLost("The file is missing from storage; upload it again.") from None
    reader = loaded.reader.at(asked.created_at or datetime.now(UTC))
    rows = list(_rows(lines, replace(loaded, reader=reader), asked))
    if not rows:
        raise invalid_field("first_line", "beyond_rows", f"is {asked.first_line}, but the file has {file.rows} rows")
    return PreviewResource(
        file_id=file.id,
        base_model=asked.base_model,
        revision=revision,
        max_seq_len=asked.max_seq_len,
        rows=rows,
        truncated=sum(any(sequence.truncated for sequence in row.sequences) for row in rows),
        skipped=sum(row.problem is not None and row.problem.code == "nothing_to_learn" for row in rows),
    )


def _lines(storage: Storage, sha256: str, first: int, count: int) -> Iterator[tuple[int, bytes]]:
    with storage.open(sha256) as file:
        yield from islice(enumerate(file, 1), first - 1, first - 1 + count)


def _rows(lines: list[tuple[int, bytes]], loaded: Loaded, asked: PreviewRequest) -> Iterator[PreviewRow]:
    left = _READ_BYTES
    for number, line in lines:
        row = json.loads(line)
        cost = _cost(row, line)
        if cost > left:
            message = f"is left out: a preview reads {_READ_BYTES} bytes, a conversation's once for each turn of the assistant"
            yield _refused(number, "preview_too_large", None, message)
            continue
        left -= cost
        yield _row(number, row, loaded, asked)


def _row(number: int, row: dict[str, Any], loaded: Loaded, asked: PreviewRequest) -> PreviewRow:
    try:
        (whole,) = loaded.reader.read([row], asked.objective, asked.max_seq_len)
    except TemplateError as error:
        return _refused(number, "template_failed", "messages" if "messages" in row else "input.messages", str(error))
    except RowError as error:
        return _refused(number, "row_unusable", None, str(error))
    shorter, _ = truncate(whole, asked.max_seq_len)
    names: tuple[Literal["chosen", "rejected"] | None, ...] = ("chosen", "rejected") if len(whole) == 2 else (None,)
    sequences = [_sequence(*of, loaded) for of in zip(names, whole, shorter, strict=True)]
    return PreviewRow(line=number, sequences=sequences, problem=_problem(number, whole, shorter, asked.max_seq_len))


def _sequence(answer: Literal["chosen", "rejected"] | None, whole: Tokens, left: Tokens, loaded: Loaded) -> PreviewSequence:
    shown = left.ids[:SHOWN_TOKENS]
    return PreviewSequence(
        answer=answer,
        length=len(whole.ids),
        trained=len(left.ids),
        labels=left.labels,
        truncated=len(left.ids) < len(whole.ids),
        tokens=shown,
        pieces=loaded.tokenizer.pieces(shown),
        learned=left.learned[:SHOWN_TOKENS],
    )


def _problem(number: int, whole: tuple[Tokens, ...], left: tuple[Tokens, ...], most: int) -> FieldError | None:
    longest = max(len(tokens.ids) for tokens in whole)
    if not learns(left):
        within = f"its first {most} tokens of {longest}" if longest > most else "it"
        cause = f"{within} prefer nothing, since both answers are equal" if equal(left) else f"{within} hold no label"
        message = f"is left out of training: {cause}"
        return FieldError(line=number, field="max_seq_len", code="nothing_to_learn", message=message)
    if longest > most:
        message = f"has {longest} tokens and is cut to {most}; raise training.max_seq_len to keep it whole"
        return FieldError(line=number, field="max_seq_len", code="row_truncated", message=message)
    return None


def _refused(number: int, code: str, field: str | None, message: str) -> PreviewRow:
    return PreviewRow(line=number, sequences=[], problem=FieldError(line=number, field=field, code=code, message=message))


def _cost(row: dict[str, Any], line: bytes) -> int:
    """Bytes to tokenize for this row: its length, times its assistant turns."""
    turns = sum(message.get("role") == "assistant" for message in row.get("messages", ()))
    return len(line) * max(1, turns)
