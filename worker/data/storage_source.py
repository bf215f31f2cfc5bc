"""A base's files as the service's storage sends them to a placement. Knows no disk, no leases and no other source."""

from collections.abc import Callable, Generator

from contract.messages.placement_messages import BaseFile
from worker.api_client import PlacementLink, Refused, Unreachable
from worker.data.base_download import SourceAway, SourceRefuses

LOST = "base_object_lost"  # the service's code for a file that storage does not hold


class StorageSource:
    """What a placement's token opens. `token` is asked before each request, since a renewed lease may bring another."""

    label = holder = "storage"
    way_out = "storage holds a damaged copy; restore the object from a backup"

    def __init__(self, link: PlacementLink, placement_id: str, token: Callable[[], str]) -> None:
        self._link, self._placement_id, self._token = link, placement_id, token

    def blocks(self, file: BaseFile, start: int) -> Generator[bytes]:
        """Raises Refused as well, where the placement is over."""
        try:
            yield from self._link.base_file(self._placement_id, self._token(), file.sha256, start)
        except Unreachable as error:
            raise SourceAway(str(error)) from None
        except Refused as error:
            if error.code != LOST:
                raise
            raise SourceRefuses(
                f"storage does not hold {file.path} any more; restore it from a backup, or an admin adds the base again"
            ) from None
