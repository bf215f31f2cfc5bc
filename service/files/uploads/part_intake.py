"""One part on its way into storage. Knows no rows."""

from typing import Self

from service.http.problems import TooLarge, invalid_field
from service.storage.object_store import Incoming, Stored


class PartTooLarge(TooLarge):
    code = "part_too_large"

    @classmethod
    def beyond(cls, limit: int) -> Self:
        return cls(f"This part may have at most {limit} bytes.", limit=limit)


class PartIntake:
    """`abandon` removes the part unless `finish` succeeded."""

    def __init__(self, incoming: Incoming, limit: int) -> None:
        self._incoming, self._limit, self._bytes = incoming, limit, 0

    def feed(self, block: bytes) -> None:
        """Write the next bytes. Raises PartTooLarge."""
        self._bytes += len(block)
        if self._bytes > self._limit:
            raise PartTooLarge.beyond(self._limit)
        self._incoming.write(block)

    def finish(self) -> Stored:
        """Store the part. Raises Invalid where it is empty."""
        if self._bytes == 0:
            raise invalid_field("data", "empty_part", "holds no bytes")
        return self._incoming.commit()

    def abandon(self) -> None:
        self._incoming.abandon()
