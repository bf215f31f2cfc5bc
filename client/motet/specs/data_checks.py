"""Local pre-upload checks of a spec's files and base model: rows that cannot train, formats that do not fit.

Reads each file once, line by line. The service validates rows in full; these checks only save an upload.
"""

import difflib
import hashlib
import json
from codecs import BOM_UTF8
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal

from contract.task_spec import TaskSpec
from contract.wording.other_formats import (
    ANSWER_FIELDS,
    FIRST_BYTES,
    ONE_A_LINE,
    PREFERENCE_FIELDS,
    not_json,
    other_format,
    other_row,
    row_not_json,
)
from motet.api.errors import MotetError

Learned = Literal["answers", "preferences"]

_LONGEST = 64 * 2**20  # bytes of a line; what is no row, a whole file without a line feed, is not read to its end

_KEYS: tuple[tuple[frozenset[str], Learned], ...] = ((PREFERENCE_FIELDS, "preferences"), (ANSWER_FIELDS, "answers"))
_OBJECTIVES: dict[str, Learned] = {"sft": "answers", "dpo": "preferences"}
_SHAPES: dict[Learned, str] = {
    "answers": '{"messages": [...]}, {"prompt": "...", "completion": "..."} or {"text": "..."}',
    "preferences": '{"prompt": "...", "chosen": "...", "rejected": "..."} or OpenAI\'s {"input", "preferred_output", ...}',
}


class DataError(MotetError):
    """A file or base model of the spec cannot be used. Nothing was uploaded."""


def check(spec: TaskSpec, files: dict[str, Path], models: Iterable[str]) -> None:
    """Raise DataError listing everything wrong. `files`: each path by its dataset field."""
    found = [*_base(spec.base_model, list(models))]
    wanted = _OBJECTIVES[spec.objective.type]
    for path in files.values():
        found += [f"{path}: {error}" for error in _file(path, wanted, spec.objective.type)]
    train = files.get("file_id")
    if train is not None and not found and spec.dataset.validation_file_id is None:
        found += [f"{train}: {error}" for error in _divisible(train)]
    if found:
        if len(found) == 1:
            raise DataError(f"{found[0]}; nothing was uploaded")
        raise DataError("nothing was uploaded:\n" + "\n".join(f"  {error}" for error in found))


def _base(name: str, models: list[str]) -> Iterator[str]:
    if name not in models:
        near = difflib.get_close_matches(name, models, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"allowed are: {', '.join(models) or 'none yet'}"
        yield f"base_model: {name!r} is not on the service's list of base models; {hint}"


def _file(path: Path, wanted: Learned, objective: str) -> Iterator[str]:
    """The first wrong row of the file; the user fixes it and checks again."""
    rows = 0
    for number, line in _lines(path):
        if not rows and (said := other_format(line.lstrip()[:FIRST_BYTES])):
            yield said
            return
        if len(line) > _LONGEST:
            yield f"line {number} has more than {_LONGEST // 2**20} MiB; where several rows are in it, {ONE_A_LINE}"
            return
        rows += 1
        try:
            row = json.loads(line.decode())
        except UnicodeDecodeError as error:
            yield f"line {number} is not UTF-8: {error.reason} at byte {error.start + 1} of the line; save the file as UTF-8"
            return
        except ValueError as error:
            yield other_format(b"", path.name) or f"line {number} {_mistake(error)}"
            return
        if not isinstance(row, dict):
            yield f"line {number} is not a JSON object; each line is one row"
            return
        if (foreign := other_row(row)) is not None:
            yield f"line {number} {foreign}"
            return
        kind = next((kind for keys, kind in _KEYS if keys & row.keys()), None)
        if kind != wanted:
            yield f"line {number} is no row for objective {objective}; it learns from {_SHAPES[wanted]}"
            return
    if rows == 0:
        yield "has no rows"


def _mistake(error: ValueError) -> str:
    if not isinstance(error, json.JSONDecodeError):
        return f"is not JSON: {error}"
    said = row_not_json(error)
    return f"{said}; each line is one row" if said == not_json(error) else said


def _divisible(path: Path) -> Iterator[str]:
    """Rejects files of equal rows: a split holds equal rows out together, so validation needs two distinct rows."""
    distinct = {hashlib.sha256(line.strip()).digest() for _, line in _lines(path)}
    if len(distinct) < 2:
        yield "all rows are the same, so none is left to validate on; add other rows, or name a validation_file"


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Non-empty lines with their numbers, counted from 1; what leads a line stays, so that columns are the file's. What has
    more than _LONGEST bytes comes in pieces, the first of them longer than that."""
    try:
        with path.open("rb") as source:
            for number, line in enumerate(iter(lambda: source.readline(_LONGEST + 2), b""), 1):
                if text := (line.removeprefix(BOM_UTF8) if number == 1 else line).rstrip():
                    yield number, text
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from None
