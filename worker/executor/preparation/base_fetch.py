"""Brings a placement's base from the hub, or from storage, to this node's cache before it is loaded, and says how far it is.

The service says from where; there is no other source to fall back on. Loads nothing.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

from contract.messages.placement_messages import BaseFile, BaseModelRef
from contract.wording.size_words import gigabytes
from worker.api_client import PlacementLink, Unreachable
from worker.boot_clock import boot_now
from worker.data.base_cache import BASES, BaseCache, BaseTooLarge, HeldBase
from worker.data.base_download import BaseDownloads, BaseSource, SourceAway, SourceRefuses, WrongBaseBytes
from worker.data.hub_source import HubSource
from worker.data.node_cache import NodeCache
from worker.data.storage_source import StorageSource
from worker.executor.placement.placement_lease import Lease
from worker.executor.retry import persist
from worker.replicas.base_loader import BaseError
from worker.settings import Settings

log = logging.getLogger(__name__)

_TELL_SECONDS = 1.0
_WAIT_SECONDS = 0.5  # between looks at what another executor fetches
_WRONG = 2  # times that a file may come with wrong bytes


class BaseFetch:
    """Fetches one base at a time; the last one stays held. `told` is called when there is news of a lease's `loading`."""

    def __init__(self, settings: Settings, link: PlacementLink, files: NodeCache, told: Callable[[], None]) -> None:
        self._files, self._cache = files, BaseCache(settings.scratch / BASES, settings.worker_base_bytes)
        self._settings, self._link, self._told = settings, link, told
        self._held: HeldBase | None = None

    def local(self, ref: BaseModelRef, lease: Lease) -> BaseModelRef:
        """The same base with a folder of this node as its source. Retries while the lease lasts. Raises BaseError."""
        if not ref.files:
            return ref
        with self._source_of(ref, lease) as source, self.telling(lease) as tell:
            run = _Run(self._cache, self._files, source, ref, lease, tell)
            held = persist(lease, run.what, run.attempt)
        if self._held is not None:
            self._held.release()
        self._held = held
        return ref.model_copy(update={"source": str(held.folder)})

    @contextmanager
    def telling(self, lease: Lease) -> Iterator[Callable[[str], None]]:
        """Within it, what is yielded takes sentences that say how far the base is."""

        def tell(sentence: str | None) -> None:
            lease.loading = sentence
            self._told()

        try:
            yield tell
        finally:
            tell(None)

    def _source_of(self, ref: BaseModelRef, lease: Lease) -> AbstractContextManager[BaseSource]:
        if ref.stored:
            return nullcontext(StorageSource(self._link, lease.placement_id, lambda: lease.token))
        token, commit = self._settings.hf_token, ref.commit or ""
        return HubSource(self._settings.hf_endpoint, token.get_secret_value() if token else None, ref.source, commit)


class _Run:
    """One base on its way here."""

    def __init__(
        self,
        cache: BaseCache,
        files: NodeCache,
        source: BaseSource,
        ref: BaseModelRef,
        lease: Lease,
        tell: Callable[[str], None],
    ) -> None:
        self._cache, self._files, self._ref, self._lease, self.tell = cache, files, ref, lease, tell
        self._source, self._downloads = source, BaseDownloads(source)
        self._whole = sum(file.bytes for file in ref.files)
        self.what = f"the download of base model {ref.name} ({gigabytes(self._whole)})"
        self._there = self._wrong = 0
        self._told_at = float("-inf")

    def attempt(self) -> HeldBase:
        """The whole base. Raises Unreachable and DiskFull, after which another attempt goes on where this one ended."""
        self._there = 0
        name = f"base model {self._ref.name}"
        try:
            with self._files.relief():
                return self._cache.hold(self._ref.files, self._file, self._elsewhere)
        except (SourceRefuses, BaseTooLarge) as error:
            raise BaseError(f"{name}: {error}") from None
        except WrongBaseBytes as error:
            self._wrong += 1
            if self._wrong >= _WRONG:
                raise BaseError(f"{name}: {error}, {_WRONG} times; {self._source.way_out}") from None
            raise Unreachable(str(error)) from None
        except SourceAway as error:
            self.tell(f"{name}: {self._part} fetched; {self._source.label} does not answer, it is asked again")
            raise Unreachable(f"{self._source.label}: {error}") from None

    @property
    def _part(self) -> str:
        return f"{gigabytes(self._there)} of {gigabytes(self._whole)}"

    def _file(self, file: BaseFile, path: Path) -> None:
        self._downloads.fetch(file, path, self._came)

    def _came(self, size: int) -> None:
        self._lease.check()
        self._there += size
        self._progress()

    def _elsewhere(self, there: int) -> None:
        self._there = there
        self._progress()
        self._lease.wait(_WAIT_SECONDS)

    def _progress(self) -> None:
        now = boot_now()
        if now - self._told_at >= _TELL_SECONDS:
            self._told_at = now
            self.tell(f"base model {self._ref.name}: {self._part} fetched from {self._source.label}")
