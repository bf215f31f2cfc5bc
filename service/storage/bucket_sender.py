"""Writes a key of a bucket from blocks that another thread makes: obstore cannot be called while it asks for the next block.

Memory is bounded: the maker waits while the bucket is slower. Knows no sha256.
"""

import queue
import threading
from collections.abc import Iterable, Iterator

from service.storage.bucket import Bucket

_WAIT_SECONDS = 0.5  # after which a writer looks whether the sender has failed
_BLOCKS = 2  # that wait for the sender


class _Abandoned(Exception):
    """Tells obstore to abort the multipart upload."""


class Sender:
    """A thread that writes a key from blocks handed over by another."""

    def __init__(self, bucket: Bucket, key: str) -> None:
        self._blocks: queue.Queue[bytes | _Abandoned | None] = queue.Queue(_BLOCKS)
        self._failed: BaseException | None = None
        self._thread = threading.Thread(target=self._send, args=(bucket, key), name="bucket-upload", daemon=True)
        self._thread.start()

    def hand_over(self, block: bytes) -> None:
        """Raises what the sender failed of."""
        self._offer(block)
        self._raise_failure()

    def finish(self) -> None:
        self._offer(None)
        self._thread.join()
        self._raise_failure()

    def abort(self) -> bool:
        """Returns whether the key was written all the same."""
        self._offer(_Abandoned())
        self._thread.join()
        return self._failed is None

    def _offer(self, block: bytes | _Abandoned | None) -> None:
        while self._thread.is_alive():
            try:
                self._blocks.put(block, timeout=_WAIT_SECONDS)
            except queue.Full:
                continue
            return

    def _raise_failure(self) -> None:
        if self._failed is not None:
            raise self._failed

    def _taken(self) -> Iterator[bytes]:
        while (block := self._blocks.get()) is not None:
            if isinstance(block, _Abandoned):
                raise block
            yield block

    def _send(self, bucket: Bucket, key: str) -> None:
        try:
            bucket.put(key, self._taken())
        except BaseException as error:  # noqa: BLE001  (raised in the thread that writes)
            self._failed = error


def send_blocks(bucket: Bucket, key: str, blocks: Iterable[bytes]) -> None:
    """Write the key from `blocks`, at once or, where they raise, not at all."""
    sender = Sender(bucket, key)
    try:
        for block in blocks:
            sender.hand_over(block)
    except BaseException:
        sender.abort()
        raise
    sender.finish()
