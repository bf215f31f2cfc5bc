"""Objects in a bucket: one appears under its key whole and verified, or not at all. Knows no tenants and no HTTP.

Keys: objects/ab/<sha256>; incoming/ and verifying/ for bytes that are not verified yet; touched/<sha256>, which is as old as an
object's last grant, since a bucket changes no dates; derived/ for archives; check/. `lock` serializes grants and removals of an
object among all processes, which a bucket cannot.
"""

import hashlib
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import BinaryIO, cast

from contract.messages.upload_messages import UploadGrant, UploadPart
from service.storage.bucket import PART, Bucket, BucketEntry, BucketKeyMissing
from service.storage.bucket_intake import INCOMING, BucketIncoming
from service.storage.bucket_sender import send_blocks
from service.storage.object_store import (
    BLOCK,
    DERIVED_LINK_SECONDS,
    DERIVED_SECONDS,
    Caller,
    ObjectMismatch,
    ObjectMissing,
    StorageRefused,
    Stored,
    require_sha256,
)
from service.storage.upload_grants import GRANT_SECONDS, UploadGrants

COPY_BYTES = 2**30  # the most that the bucket is asked to copy by itself: S3 copies 5 GiB, within a request's time less
PART_BYTES = 2**30  # of an upload in parts by presigned URLs; S3 takes 5 GiB in one PUT
_OBJECTS, _TOUCHED, _DERIVED, _VERIFYING, _CHECK = "objects", "touched", "derived", "verifying", "check"
_LEFT_SECONDS = {
    INCOMING: 24 * 3600.0,
    _VERIFYING: 24 * 3600.0,
    _TOUCHED: 48 * 3600.0,
    _DERIVED: DERIVED_SECONDS,
    _CHECK: 3600.0,
}

Lock = Callable[[str], AbstractContextManager[None]]


class BucketStorage:
    def __init__(self, bucket: Bucket, grants: UploadGrants, lock: Lock, url_seconds: float) -> None:
        self._bucket, self._grants, self._lock, self._url_seconds = bucket, grants, lock, url_seconds

    def receive(self) -> BucketIncoming:
        return BucketIncoming(self._bucket, self._keep)

    def put(self, source: BinaryIO, sha256: str, size: int) -> Stored:
        self._touch(sha256)
        self._write_verified(iter(lambda: source.read(BLOCK), b""), sha256, size)
        return Stored(sha256, size, 0.0)

    def open(self, sha256: str) -> BinaryIO:
        try:
            return cast(BinaryIO, self._bucket.open(_key(sha256)))
        except BucketKeyMissing:
            raise ObjectMissing(sha256) from None

    def size(self, sha256: str) -> int:
        return self._found(sha256).bytes

    def exists(self, sha256: str) -> bool:
        try:
            self._found(sha256)
        except ObjectMissing:
            return False
        return True

    def keys(self) -> Iterator[Stored]:
        for page in self._bucket.pages(_OBJECTS):
            for entry in page:
                yield Stored(entry.key.rpartition("/")[2], entry.bytes, entry.age)

    def delete(self, sha256: str, older_than: float = 0.0) -> bool:
        with self._lock(sha256):
            try:
                age = self._found(sha256).age
            except ObjectMissing:
                return False
            if older_than > 0 and min(age, self._granted_ago(sha256)) < older_than:
                return False
            self._bucket.delete(_key(sha256))
        return True

    def sweep_incoming(self) -> int:
        removed = 0
        for prefix, seconds in _LEFT_SECONDS.items():
            for page in self._bucket.pages(prefix):
                for entry in page:
                    if entry.age > seconds:
                        self._bucket.delete(entry.key)
                        removed += prefix == INCOMING
        return removed

    def grant_upload(self, sha256: str, size: int, direct: Caller | None = None) -> UploadGrant:
        if self._renewed(sha256, size):
            return UploadGrant(exists=True)
        token = self._grants.sign(sha256, size)
        url = f"/internal/v1/objects/{token}"
        if direct is None:
            return UploadGrant(exists=False, url=url)
        parts = [
            UploadPart(url=self._bucket.sign("PUT", key, GRANT_SECONDS), offset=start, bytes=min(PART_BYTES, size - start))
            for start, key in _parts(token, size)
        ]
        return UploadGrant(exists=False, parts=parts, complete=f"{url}/complete")

    def complete_upload(self, token: str, sha256: str, size: int) -> None:
        parts = [key for _, key in _parts(token, size)]
        try:
            self._take_in(parts, sha256, size)
        except BucketKeyMissing:
            try:  # a repeated call, whose answer was lost: the parts are gone and the object is there
                if self._found(sha256).bytes == size:
                    return
            except ObjectMissing:
                pass
            raise ObjectMismatch("unknown", 0, sha256, size) from None
        for key in parts:
            self._bucket.delete(key)

    def presign(self, sha256: str, filename: str, media_type: str, caller: Caller) -> str | None:
        return self._bucket.sign("GET", _key(sha256), self._url_seconds)

    def presign_derived(self, name: str, media_type: str, blocks: Callable[[], Iterable[bytes]], caller: Caller) -> str | None:
        return self._bucket.sign("GET", self._derived(name, blocks), min(self._url_seconds, DERIVED_LINK_SECONDS))

    def derive(self, name: str, blocks: Callable[[], Iterable[bytes]]) -> BinaryIO:
        return cast(BinaryIO, self._bucket.open(self._derived(name, blocks)))

    def proxy_headers(self, sha256: str) -> dict[str, str]:
        return {}

    def free_bytes(self) -> float:
        return float("inf")

    def check(self) -> None:
        key, said = f"{_CHECK}/{uuid.uuid4().hex}", uuid.uuid4().bytes
        self._bucket.put(key, said)
        try:
            if self._bucket.read(key, 0, len(said)) != said:
                raise StorageRefused(f"{self._bucket.name} gives back other bytes than were written.")
            self._bucket.sign("GET", key, self._url_seconds)
        except BucketKeyMissing:
            raise StorageRefused(f"{self._bucket.name} does not hold what was just written to it.") from None
        finally:
            self._bucket.delete(key)

    def _derived(self, name: str, blocks: Callable[[], Iterable[bytes]]) -> str:
        """The key of what is derived, having been made where it is not there and young."""
        key = f"{_DERIVED}/{name}"
        try:
            young = self._bucket.find(key).age < DERIVED_LINK_SECONDS
        except BucketKeyMissing:
            young = False
        if not young:
            send_blocks(self._bucket, key, blocks())
        return key

    def _found(self, sha256: str) -> BucketEntry:
        try:
            return self._bucket.find(_key(sha256))
        except BucketKeyMissing:
            raise ObjectMissing(sha256) from None

    def _granted_ago(self, sha256: str) -> float:
        try:
            return self._bucket.find(f"{_TOUCHED}/{sha256}").age
        except BucketKeyMissing:
            return float("inf")

    def _renewed(self, sha256: str, size: int) -> bool:
        """Whether the object is there, which is then young. The lock holds a connection: it is taken only if so."""
        try:
            if self._found(sha256).bytes != size:
                return False
            self._touch(sha256)
            return self._found(sha256).bytes == size  # a removal may have been faster than the lock
        except ObjectMissing:
            return False

    def _touch(self, sha256: str) -> None:
        """Before an object is written: a removal that has begun ends first, a later one spares it."""
        with self._lock(require_sha256(sha256)):
            self._bucket.put(f"{_TOUCHED}/{sha256}", b"")

    def _keep(self, written: str | bytes, sha256: str, size: int) -> None:
        """Store bytes that this process hashed: themselves, or those under a key that no URL was given for."""
        self._touch(sha256)
        if isinstance(written, bytes):
            self._bucket.put(_key(sha256), written)
        elif size <= COPY_BYTES:
            self._bucket.copy(written, _key(sha256))
        else:
            self._write_verified(self._blocks([written]), sha256, size)

    def _take_in(self, parts: list[str], sha256: str, size: int) -> None:
        """Verify what others put. Their URLs still work, so what is hashed must be out of their reach: a copy, or the very
        bytes that are written on."""
        if len(parts) > 1 or size > COPY_BYTES:
            self._touch(sha256)
            self._write_verified(self._blocks(parts), sha256, size)
            return
        aside = f"{_VERIFYING}/{uuid.uuid4().hex}"
        self._bucket.copy(parts[0], aside)
        try:
            for _ in _verified(self._blocks([aside]), sha256, size):
                pass
            self._touch(sha256)
            self._bucket.copy(aside, _key(sha256))
        finally:
            self._bucket.delete(aside)

    def _write_verified(self, blocks: Iterable[bytes], sha256: str, size: int) -> None:
        """Write an object whose bytes are verified before it appears. Raises ObjectMismatch."""
        checked = _verified(blocks, sha256, size)
        if size <= PART:
            self._bucket.put(_key(sha256), b"".join(checked))
        else:
            send_blocks(self._bucket, _key(sha256), checked)

    def _blocks(self, keys: Iterable[str]) -> Iterator[bytes]:
        for key in keys:
            with self._bucket.open(key) as source:
                while block := source.read(BLOCK):
                    yield block


def _key(sha256: str) -> str:
    return f"{_OBJECTS}/{require_sha256(sha256)[:2]}/{sha256}"


def _parts(token: str, size: int) -> list[tuple[int, str]]:
    """Offset and key of each part of a granted upload; who has not the secret cannot guess the keys."""
    name = hashlib.sha256(token.encode()).hexdigest()
    return [(start, f"{INCOMING}/{name}/{start // PART_BYTES:05d}") for start in range(0, max(size, 1), PART_BYTES)]


def _verified(blocks: Iterable[bytes], sha256: str, size: int) -> Iterator[bytes]:
    """The same blocks. Raises ObjectMismatch after the last one, or once there are too many bytes."""
    digest, count = hashlib.sha256(), 0
    for block in blocks:
        digest.update(block)
        count += len(block)
        if count > size:
            break
        yield block
    if count != size or digest.hexdigest() != sha256:
        raise ObjectMismatch(digest.hexdigest(), count, sha256, size)
