"""Content-addressed object store: the interface, and what goes wrong with one. Knows no tenants.

`LocalStorage` (local_storage.py) keeps objects on a file system that all service processes share, `BucketStorage`
(bucket_storage.py) in a bucket of S3, GCS or Azure. `storage_of` (connect.py) chooses by the settings.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import BinaryIO, Protocol

from contract.messages.upload_messages import UploadGrant
from service.http.problems import Problem, Unavailable

BLOCK = 2**20  # bytes copied at a time
DERIVED_SECONDS = 3600.0  # life of what is made from objects
DERIVED_LINK_SECONDS = DERIVED_SECONDS / 2  # it is handed out while it is younger, by links that last so long at most
_HEX = frozenset("0123456789abcdef")


class ObjectMissing(Exception):
    """Storage holds no object of this sha256."""

    def __init__(self, sha256: str) -> None:
        super().__init__(f"storage holds no object {sha256}")
        self.sha256 = sha256


class ObjectMismatch(Exception):
    """The bytes do not match the announced sha256 or size."""

    def __init__(self, sha256: str, size: int, expected_sha256: str, expected_size: int | None) -> None:
        wanted = (
            f"{expected_size} bytes, sha256 {expected_sha256}" if expected_size is not None else f"sha256 {expected_sha256}"
        )
        super().__init__(f"got {size} bytes, sha256 {sha256}; announced were {wanted}")


class StorageAway(Unavailable, OSError):
    """Storage does not answer, or not in time. It may pass."""

    code, title = "storage_unavailable", "Storage does not answer"


class StorageRefused(Problem, OSError):
    """Storage answers that it will not: wrong credentials, no such bucket, no right to it. An operator has to mend that."""

    status, code, title = 500, "storage_refused", "Storage refuses the service"


@dataclass(frozen=True)
class Stored:
    """An object in storage. `age` is seconds since it was last put or granted."""

    sha256: str
    bytes: int
    age: float


@dataclass(frozen=True)
class Caller:
    """Who will follow a presigned URL: the scheme and host by which it reached the service, and whether it is a worker."""

    scheme: str
    host: str
    worker: bool = False


class Incoming(Protocol):
    """An object being written. `abandon` removes it unless it was committed."""

    def write(self, block: bytes) -> None: ...

    def commit(self, sha256: str | None = None, size: int | None = None) -> Stored:
        """Store the object. Raises ObjectMismatch and removes it if it differs from the announced sha256 or size."""
        ...

    def abandon(self) -> None: ...


class Storage(Protocol):
    """The storage interface. Keys are sha256 in lower-case hex; objects never change.

    Every call may raise StorageAway, StorageRefused, or another OSError: ENOSPC where there is no room."""

    def receive(self) -> Incoming:
        """Begin writing an object whose sha256 may be unknown yet."""
        ...

    def put(self, source: BinaryIO, sha256: str, size: int) -> Stored:
        """Store the rest of `source` under its announced sha256 and size; raises ObjectMismatch."""
        ...

    def open(self, sha256: str) -> BinaryIO:
        """The object's bytes, seekable: a bucket is asked for ranges. Raises ObjectMissing."""
        ...

    def size(self, sha256: str) -> int:
        """Bytes of the object; raises ObjectMissing."""
        ...

    def exists(self, sha256: str) -> bool: ...

    def keys(self) -> Iterator[Stored]:
        """Every object, page by page, in no promised order."""
        ...

    def delete(self, sha256: str, older_than: float = 0.0) -> bool:
        """Remove the object unless it was put or granted within `older_than` seconds; returns whether it was removed."""
        ...

    def sweep_incoming(self) -> int:
        """Remove partly written and temporary objects of dead processes; returns how many."""
        ...

    def grant_upload(self, sha256: str, size: int, direct: Caller | None = None) -> UploadGrant:
        """Where to PUT this object. If it exists already, this resets its age, so that garbage collection spares it.

        direct: an uploader that can put to presigned URLs, and to parts, of which it then says that they are there
        (`complete_upload`); None: the bytes come through the API."""
        ...

    def complete_upload(self, token: str, sha256: str, size: int) -> None:
        """Verify and keep what was put to the presigned URLs of this grant. Raises ObjectMismatch; repeating it is harmless."""
        ...

    def presign(self, sha256: str, filename: str, media_type: str, caller: Caller) -> str | None:
        """A URL of the object that needs no credential and ends soon; None where storage has none. It may come as another file
        than named: a bucket sends its keys."""
        ...

    def presign_derived(self, name: str, media_type: str, blocks: Callable[[], Iterable[bytes]], caller: Caller) -> str | None:
        """A presigned URL of bytes that are made from objects, kept for an hour; None where storage has none, or no room for
        them. `name`: their entity tag, a slash, and a file name."""
        ...

    def derive(self, name: str, blocks: Callable[[], Iterable[bytes]]) -> BinaryIO | None:
        """The same bytes as those of `presign_derived`, seekable, for who cannot follow a URL; None where there is no room."""
        ...

    def proxy_headers(self, sha256: str) -> dict[str, str]:
        """Headers that tell a proxy in front of the service to send the object itself; {} where there is none."""
        ...

    def free_bytes(self) -> float:
        """Room that is left; infinite where nobody can know."""
        ...

    def check(self) -> None:
        """Write, read and remove a small object. Raises what a caller would."""
        ...


def require_sha256(sha256: str) -> str:
    """The same text if it is a sha256 in lower-case hex, and so never a path. Raises ValueError."""
    if len(sha256) != 64 or not set(sha256) <= _HEX:
        raise ValueError(f"not a sha256: {sha256!r}")
    return sha256
