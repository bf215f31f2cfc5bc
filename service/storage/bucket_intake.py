"""An object on its way into a bucket: hashed as it comes, sent in parts by a thread beside its writer.

Small ones stay in memory until their sha256 is known.
"""

import hashlib
import uuid
from collections.abc import Callable

from service.storage.bucket import PART, Bucket
from service.storage.bucket_sender import Sender
from service.storage.object_store import ObjectMismatch, Stored

INCOMING = "incoming"


class BucketIncoming:
    """`keep` stores what is complete under its sha256: (key of the written bytes or the bytes themselves, sha256, size)."""

    def __init__(self, bucket: Bucket, keep: Callable[[str | bytes, str, int], None]) -> None:
        self._bucket, self._keep = bucket, keep
        self._key = f"{INCOMING}/{uuid.uuid4().hex}"
        self._held = bytearray()
        self._sender: Sender | None = None
        self._digest, self._size, self._over = hashlib.sha256(), 0, False

    def write(self, block: bytes) -> None:
        self._digest.update(block)
        self._size += len(block)
        self._held += block
        if len(self._held) < PART:
            return
        if self._sender is None:
            self._sender = Sender(self._bucket, self._key)
        self._sender.hand_over(bytes(self._held))
        self._held.clear()

    def commit(self, sha256: str | None = None, size: int | None = None) -> Stored:
        actual = self._digest.hexdigest()
        if (sha256 is not None and sha256 != actual) or (size is not None and size != self._size):
            self.abandon()
            raise ObjectMismatch(actual, self._size, sha256 or actual, size)
        if self._sender is None:
            self._keep(bytes(self._held), actual, self._size)
        else:
            if self._held:
                self._sender.hand_over(bytes(self._held))
            self._sender.finish()
            self._keep(self._key, actual, self._size)
            self._bucket.delete(self._key)
        self._over = True
        return Stored(actual, self._size, 0.0)

    def abandon(self) -> None:
        """Abort the upload; does nothing after a commit or when called again."""
        if self._over:
            return
        self._over = True
        self._held.clear()
        if self._sender is not None and self._sender.abort():
            self._bucket.delete(self._key)
