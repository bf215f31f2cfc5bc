"""Calls about files and their rows."""

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from motet.api.errors import ApiError, FileNotReady, MotetError, NotMotet
from motet.api.resources import File, FileImport, FoundFile, Preview
from motet.api.steps import Listing, Operation, ask, at, awaited, entries, followed, get, make, one, remove

_SOURCE_SECONDS = 60.0  # longer than the service waits for a source


@dataclass(frozen=True)
class BucketAccess:
    """How an object of a bucket is read: with keys, or without them as anybody may. The service keeps them encrypted until the
    import has ended. `endpoint`: an S3-compatible server; None: AWS."""

    access_key_id: str | None = None
    secret_access_key: str | None = field(default=None, repr=False)
    session_token: str | None = field(default=None, repr=False)
    region: str | None = None
    endpoint: str | None = None
    version_id: str | None = None


def upload(path: str | Path, name: str | None = None) -> Operation[File]:
    """Upload rows of JSONL. Raises ApiError with the file's name and each wrong line, MotetError if it cannot be read."""
    path = Path(path)
    try:
        with path.open("rb") as rows:
            return (yield from one(File, make("/v1/files", files={"file": (name or path.name, rows)})))
    except OSError as error:
        raise MotetError(f"cannot read {path}: {error.strerror}") from error
    except NotMotet:
        raise
    except ApiError as error:
        raise ApiError(error.status, error.problem, about=name or path.name) from None


def add(
    source: str,
    revision: str | None = None,
    path: str | None = None,
    split: str | None = None,
    token: str | None = None,
    name: str | None = None,
    bucket: BucketAccess | None = None,
) -> Operation[FileImport]:
    """Import a data set by its source, `hf://datasets/organisation/name`, an https:// URL or s3://bucket/key; `wait` has it
    once it is ready.

    revision, path, split and token are the hub's: a branch, tag or commit; the file, or the split whose one file is meant; an
    account's, for gated and private data sets. bucket: how an s3:// source is read; None: as anybody may, on AWS in us-east-1.
    """
    said = _named(source, bucket, revision, path, split, token, name)
    return one(FileImport, make("/v1/files", json=said, seconds=_SOURCE_SECONDS))


def inspect(
    source: str,
    revision: str | None = None,
    path: str | None = None,
    split: str | None = None,
    token: str | None = None,
    name: str | None = None,
    bucket: BucketAccess | None = None,
) -> Operation[FoundFile]:
    """What `add` would import: size, hash, commit, licence. Imports nothing."""
    said = _named(source, bucket, revision, path, split, token, name) | {"dry_run": True}
    return one(FoundFile, make("/v1/files", json=said, seconds=_SOURCE_SECONDS))


def imported(file_id: str) -> Operation[FileImport]:
    """How far the import of a file is, or how it came."""
    return one(FileImport, get(at("/v1/files/{}", file_id)))


def imports(status: str = "importing") -> Listing[FileImport]:
    """The tenant's imports that are no files (yet), newest first: those of status `importing`, or `failed`."""
    return entries(FileImport, "/v1/files", {"status": status})


def follow(file_id: str) -> Listing[FileImport]:
    """The import now and at each look, until it is ready or has failed."""
    return followed(lambda: imported(file_id), _ended)


def wait(file_id: str, timeout: float | None = None) -> Operation[File]:
    """The file once its import is ready. Raises FileNotReady where it failed, or after `timeout` seconds."""
    found, ended = yield from awaited(follow(file_id), _ended, timeout)
    if not ended:
        raise FileNotReady(f"{file_id} is still imported after {timeout:g} s, {found.received_bytes} bytes so far")
    if found.status == "failed":
        raise FileNotReady(f"{file_id} could not be imported: {found.error.detail if found.error else 'unknown'}")
    return (yield from file(file_id))


def _named(source: str, bucket: BucketAccess | None, *said: str | None) -> dict[str, Any]:
    names = ("revision", "path", "split", "token", "name")
    given = dict(zip(names, said, strict=True)) | (asdict(bucket) if bucket is not None else {})
    return {"source": source} | {name: value for name, value in given.items() if value is not None}


def file(file_id: str) -> Operation[File]:
    """The file's description."""
    return one(File, get(at("/v1/files/{}", file_id)))


def files(unused: bool | None = None) -> Listing[File]:
    """The tenant's files, newest first. `unused`: only those that no task names, or only the others."""
    return entries(File, "/v1/files", {"unused": unused})


def preview(file_id: str, base_model: str, **more: Any) -> Operation[Preview]:
    """Rows as a task would train on them. `more`: objective, max_seq_len, first_line, rows, as in the API."""
    return one(Preview, ask("/v1/files/preview", {"file_id": file_id, "base_model": base_model} | more))


def delete_file(file_id: str) -> Operation[None]:
    """Delete the file. Raises ApiError (`file_in_use`) while a task that has not ended needs it."""
    yield from remove(at("/v1/files/{}", file_id))


def _ended(found: FileImport) -> bool:
    return found.status != "importing"
