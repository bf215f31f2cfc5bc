"""Calls about files and their rows."""

from pathlib import Path
from typing import Any

from motet.api.errors import ApiError, MotetError
from motet.api.resources import File, Preview
from motet.api.steps import Listing, Operation, ask, change, entries, get, make, one


def upload(path: str | Path, name: str | None = None) -> Operation[File]:
    """Upload rows of JSONL. Raises ApiError with the file's name and each wrong line, MotetError if it cannot be read."""
    path = Path(path)
    try:
        with path.open("rb") as rows:
            return (yield from one(File, make("/v1/files", files={"file": (name or path.name, rows)})))
    except OSError as error:
        raise MotetError(f"cannot read {path}: {error.strerror}") from error
    except ApiError as error:
        raise ApiError(error.status, error.problem, about=name or path.name) from None


def file(file_id: str) -> Operation[File]:
    """The file's description."""
    return one(File, get(f"/v1/files/{file_id}"))


def files(unused: bool | None = None) -> Listing[File]:
    """The tenant's files, newest first. `unused`: only those that no task names, or only the others."""
    return entries(File, "/v1/files", {"unused": unused})


def preview(file_id: str, base_model: str, **more: Any) -> Operation[Preview]:
    """Rows as a task would train on them. `more`: objective, max_seq_len, first_line, rows, as in the API."""
    return one(Preview, ask("/v1/files/preview", {"file_id": file_id, "base_model": base_model} | more))


def delete_file(file_id: str) -> Operation[None]:
    """Delete the file. Raises ApiError (`file_in_use`) while a task that has not ended needs it."""
    yield from change("DELETE", f"/v1/files/{file_id}")
