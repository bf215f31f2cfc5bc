"""Cache maintenance in a thread of the daemon: erases files that tenants deleted, removes leftovers, evicts what exceeds the
budget. Trains nothing and imports no torch.

The thread asks the service about every cached file, at once after joining and then every ERASE_SECONDS, so a file that was
deleted while this node was offline is erased as soon as it is back.
"""

import logging
import threading
from collections.abc import Iterator
from pathlib import Path

from contract.messages.cached_file_list import CachedFile, CachedFiles
from contract.messages.node_messages import NodeWelcome
from worker.api_client import LinkError, NodeLink
from worker.data.executor_folders import remove_dead
from worker.data.node_cache import NodeCache

log = logging.getLogger(__name__)

ERASE_SECONDS = 60.0
_ASKED_AT_ONCE = 1000


class CacheUpkeep:
    def __init__(
        self, link: NodeLink, welcome: NodeWelcome, cache: NodeCache, executors: Path, seconds: float = ERASE_SECONDS
    ) -> None:
        """executors: the folder with those of executors."""
        self._link, self._welcome, self._cache, self._executors, self._seconds = link, welcome, cache, executors, seconds
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._work, name="cache upkeep", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._closed.set()

    def _work(self) -> None:
        away = False
        while not self._closed.is_set():
            try:
                self._erase()
                away = False
                self._cache.sweep()
                remove_dead(self._executors)
                self._cache.evict()
            except LinkError as error:
                if not away:
                    log.warning("deleted files cannot be asked for, they are erased later: %s", error)
                away = True
            except OSError as error:
                log.error("the cache in %s cannot be kept in order: %s", self._cache.folder, error)
            self._closed.wait(self._seconds)

    def _erase(self) -> None:
        for kept in _batches(self._cache.files()):
            for file in self._link.unwanted(self._welcome.node_id, self._welcome.credential, kept).files:
                log.info("file %s of tenant %s was deleted and is erased here", file.sha256, file.tenant_id or "unknown")
                self._cache.erase(file.tenant_id, file.sha256)


def _batches(files: list[tuple[str, str]]) -> Iterator[CachedFiles]:
    for first in range(0, len(files), _ASKED_AT_ONCE):
        some = files[first : first + _ASKED_AT_ONCE]
        yield CachedFiles(files=[CachedFile(tenant_id=tenant_id, sha256=sha256) for tenant_id, sha256 in some])
