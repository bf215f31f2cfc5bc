"""A bucket of S3, GCS or Azure through obstore: keys and bytes, each error as one of ours. Knows no sha256.

After a call that ran out of time the next ones fail at once for a few seconds, so that a bucket that hangs does not hold every
thread of the API.
"""

import errno
import io
import logging
import re
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import urlsplit

import obstore
from obstore.exceptions import BaseError, PermissionDeniedError, UnauthenticatedError
from obstore.store import from_url

from contract.wording.field_mistakes import url_without_secrets
from service.settings import Settings
from service.storage.object_store import StorageAway, StorageRefused

log = logging.getLogger(__name__)

PART = 8 * 2**20  # bytes of a part of a multipart upload, and of a read; S3 takes at most 10,000 parts
_PARTS_AT_ONCE = 4  # an upload holds as many in memory
_CONNECT_SECONDS = 3
_PAUSE_SECONDS = 5.0
_FULL = ("insufficientstorage", "storagefull", "quotaexceeded", "507 insufficient")
_WRONG = (
    *("nosuchbucket", "nosuchcontainer", "bareredirect", "redirect without location", "expiredtoken", "invalidtoken"),
    *("401 unauthorized", "403 forbidden", "authorizationheadermalformed", "400 bad request"),
)
_SLOW = ("requesttimeout",)  # S3 answers a slow sender with 400


class BucketKeyMissing(Exception):
    """The bucket is there, and has no such key."""


@dataclass(frozen=True)
class BucketEntry:
    """A key of the bucket. `age`: seconds since it was written."""

    key: str
    bytes: int
    age: float


class Bucket:
    """One bucket and prefix. `public`: the same under the address at which tenants and workers reach it."""

    def __init__(self, store: Any, public: Any, name: str) -> None:
        self._store, self._public, self.name = store, public, name
        self._paused_until = 0.0

    @classmethod
    def of(cls, url: str, settings: Settings, variable: str) -> "Bucket":
        """The bucket of the URL that this variable of the environment holds. Opens no connection. Raises StorageRefused where
        obstore understands the URL or an option otherwise."""
        named, asked = url_without_secrets(url), None
        try:
            asked = urlsplit(url)
            store = from_url(url, **_options(asked.scheme, settings, settings.storage_endpoint))
            outside = settings.storage_public_endpoint
            public = from_url(url, **_options(asked.scheme, settings, outside)) if outside else store
        except (BaseError, ValueError) as error:
            why = "it is no URL" if asked is None else _first_line(error).replace(url, named)  # which the error may repeat
            raise StorageRefused(f"{variable} {named!r} cannot be used: {why}") from None
        return cls(store, public, named)

    def put(self, key: str, source: bytes | Iterable[bytes]) -> None:
        """Write the key at once or not at all: an exception of the iterable, which must not use a bucket, aborts the multipart
        upload and is passed on."""
        try:
            with self._asked(f"PUT of {key}"):
                if isinstance(source, bytes):
                    obstore.put(self._store, key, source, use_multipart=False)
                else:
                    obstore.put(self._store, key, iter(source), chunk_size=PART, max_concurrency=_PARTS_AT_ONCE)
        except BucketKeyMissing:  # a lifecycle rule or an operator aborted the multipart upload
            raise StorageAway("The bucket gave an upload up before it was whole; try again.", retry_after=1) from None

    def find(self, key: str) -> BucketEntry:
        """Raises BucketKeyMissing, and StorageRefused where it is the bucket that is missing."""
        try:
            with self._asked(f"HEAD of {key}"):
                return _entry(obstore.head(self._store, key))
        except BucketKeyMissing:  # the answer to HEAD has no body, so it does not say what is missing
            with self._asked(f"GET of {key}"):
                return _entry(obstore.get(self._store, key).meta)

    def read(self, key: str, start: int, count: int) -> bytes:
        with self._asked(f"GET of {key}"):
            return bytes(obstore.get_range(self._store, key, start=start, length=count))

    def open(self, key: str) -> io.BufferedReader:
        """The key's bytes, read in ranges. Raises BucketKeyMissing."""
        return io.BufferedReader(_Ranges(self, key, self.find(key).bytes), PART)

    def copy(self, source: str, target: str) -> None:
        """By the bucket itself. Raises BucketKeyMissing."""
        with self._asked(f"COPY of {source}"):
            obstore.copy(self._store, source, target)

    def delete(self, key: str) -> None:
        """No error where it is gone already."""
        try:
            with self._asked(f"DELETE of {key}"):
                obstore.delete(self._store, key)
        except BucketKeyMissing:
            return

    def pages(self, prefix: str) -> Iterator[list[BucketEntry]]:
        """The keys below `prefix`, a thousand at a time, in their order."""
        with self._asked(f"LIST of {prefix}"):
            listing = iter(obstore.list(self._store, prefix, chunk_size=1000))
        while True:
            with self._asked(f"LIST of {prefix}"):
                page = next(listing, None)
            if page is None:
                return
            yield [_entry(one) for one in page]

    def sign(self, method: str, key: str, seconds: float) -> str:
        """A URL that lets anybody do this to the key for so long."""
        with self._asked(f"signing of {key}"):
            return str(obstore.sign(self._public, method, key, timedelta(seconds=seconds)))

    @contextmanager
    def _asked(self, what: str) -> Iterator[None]:
        """Raise obstore's errors as ours, and let nobody ask a bucket that has just not answered."""
        if time.monotonic() < self._paused_until:
            raise StorageAway("Storage has just not answered; try again shortly.", retry_after=int(_PAUSE_SECONDS))
        try:
            yield
        except FileNotFoundError as error:
            if _says(error, _WRONG):
                raise self._refused(what, error) from None
            raise BucketKeyMissing(what) from None
        except (BaseError, PermissionError) as error:
            raise self._ours(what, error) from None

    def _ours(self, what: str, error: Exception) -> Exception:
        if _says(error, _FULL):
            log.error("the bucket %s has no room: %s: %s", self.name, what, _first_line(error))
            return OSError(errno.ENOSPC, f"the bucket {self.name} has no room")
        denied = isinstance(error, PermissionDeniedError | UnauthenticatedError | PermissionError)
        if denied or (_says(error, _WRONG) and not _says(error, _SLOW)):
            return self._refused(what, error)
        log.error("the bucket %s does not answer: %s: %s", self.name, what, _first_line(error))
        self._paused_until = time.monotonic() + _PAUSE_SECONDS
        return StorageAway("Storage does not answer in time; try again shortly.", retry_after=int(_PAUSE_SECONDS))

    def _refused(self, what: str, error: Exception) -> StorageRefused:
        log.error("the bucket %s refuses: %s: %s", self.name, what, _first_line(error))
        code = re.search(r"<Code>(\w+)</Code>", str(error))
        said = f" ({code[1]})" if code else ""
        return StorageRefused(
            f"Storage refuses what the service asks{said}; an operator has to mend its address or credentials."
        )


class _Ranges(io.RawIOBase):
    """A key as a raw file: each read is one request for a range."""

    def __init__(self, bucket: Bucket, key: str, size: int) -> None:
        self._bucket, self._key, self._size, self._at = bucket, key, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    def readall(self) -> bytes:
        return b"".join(iter(lambda: self.read(PART) or b"", b""))  # in larger ranges than RawIOBase asks for

    def readinto(self, buffer: Any) -> int:
        count = min(len(buffer), self._size - self._at)
        if count <= 0:
            return 0
        try:
            block = self._bucket.read(self._key, self._at, count)
        except BucketKeyMissing:
            raise StorageAway(f"{self._key} was removed while it was read.") from None
        buffer[: len(block)] = block
        self._at += len(block)
        return len(block)


def _options(scheme: str, settings: Settings, endpoint: str | None) -> dict[str, Any]:
    """What obstore is told besides the URL; credentials it finds by itself, as the cloud's own tools do."""
    seconds = settings.storage_timeout_seconds
    options: dict[str, Any] = {
        "client_options": {
            "timeout": timedelta(seconds=seconds),
            "connect_timeout": timedelta(seconds=min(seconds, _CONNECT_SECONDS)),
            "allow_http": bool(endpoint) and urlsplit(endpoint).scheme == "http",
        },
        "retry_config": {
            "max_retries": settings.storage_retries,
            "retry_timeout": timedelta(seconds=2 * seconds),
            "backoff": {"init_backoff": timedelta(seconds=0.1), "max_backoff": timedelta(seconds=2), "base": 2},
        },
    }
    if endpoint is not None:
        options["endpoint"] = endpoint
    if scheme != "s3":
        return options
    path_style = settings.storage_path_style if settings.storage_path_style is not None else endpoint is not None
    # keys are deleted one by one: not every server knows S3's bulk delete
    options |= {"virtual_hosted_style_request": not path_style, "disable_bulk_delete": True}
    if settings.storage_region is not None:
        options["region"] = settings.storage_region
    if settings.storage_encryption is not None:
        options["server_side_encryption"] = settings.storage_encryption
    if settings.storage_kms_key is not None:
        options["sse_kms_key_id"] = settings.storage_kms_key
    return options


def _entry(meta: Any) -> BucketEntry:
    changed: datetime = meta["last_modified"]
    return BucketEntry(str(meta["path"]), int(meta["size"]), time.time() - changed.timestamp())


def _says(error: Exception, words: Iterable[str]) -> bool:
    said = str(error).lower()
    return any(word in said for word in words)


def _first_line(error: Exception) -> str:
    return " ".join(str(error).partition("Debug source")[0].split())[:600]
