"""One merge, from the work that the service gave this node to the files in storage. A process of its own does nothing else.

Files are stored and reported one by one, so that what follows a killed process goes on with the next one. The disk holds one
shard at a time, memory one tensor. Any thread may hand over commands; the main thread merges.
"""

import logging
import queue
from collections.abc import Callable
from functools import partial
from pathlib import Path

from contract.messages.adapter_manifest import AdapterFile
from contract.messages.merge_messages import MergeReport
from contract.messages.placement_messages import MergeWork
from contract.model_revision import NoWeights, revision_of
from contract.strict import Message
from worker.adapters.job_checkpoint import UnreadableWeights
from worker.api_client import FenceStale, PlacementLink, Refused
from worker.boot_clock import boot_now
from worker.data.node_cache import NodeCache
from worker.data.object_cache import Kept, ObjectCache
from worker.executor.artifact_uploader import upload
from worker.executor.placement.placement_lease import Lease, LeaseNotHeld
from worker.executor.preparation.base_fetch import BaseFetch
from worker.executor.preparation.object_fetch import DamagedObject, ObjectFetch
from worker.executor.retry import persist
from worker.export.merged_model import MergedModel, MergeError
from worker.pipe_messages import Detach, ExecutorProgress, Merge, Phase, PlacementEnded, Renew, Stop
from worker.replicas.base_loader import BaseError
from worker.settings import Settings

log = logging.getLogger(__name__)

README = "README.md"
_TELL_SECONDS = 1.0


class MergeProcess:
    """`tell` sends a message to the daemon."""

    def __init__(self, settings: Settings, link: PlacementLink, tell: Callable[[Message], None]) -> None:
        self._settings, self._link, self._tell = settings, link, tell
        self._given: queue.SimpleQueue[MergeWork | None] = queue.SimpleQueue()
        self._lease: Lease | None = None

    def handle_command(self, command: Merge | Renew | Detach | Stop) -> None:
        match command:
            case Merge(placement=work):
                self._lease = Lease(work.placement_id, work.fence, work.token, command.deadline)
                self._given.put(work)
            case Renew() if self._lease is not None:
                self._lease.renew(command.deadline, command.token)
            case Detach() | Stop():
                if self._lease is not None:
                    self._lease.release()
                self._given.put(None)

    def run(self) -> None:
        """Merge what is given first, and return."""
        work = self._given.get()
        if work is None:
            return
        assert self._lease is not None
        run = _Run(self._settings, self._link, self._lease, work, self._tell)
        lost, detail = False, ""
        try:
            run.merge()
        except (LeaseNotHeld, FenceStale) as error:
            log.info("merge %s is given up: %s", work.placement_id, error)
        except Refused as error:
            lost, detail = True, f"the service refused a request: {error}"
        except UnreadableWeights as error:  # another node's disk may give them back
            lost, detail = True, str(error)
        self._tell(PlacementEnded(placement_id=work.placement_id, lost=lost, detail=detail))


class _Run:
    def __init__(
        self, settings: Settings, link: PlacementLink, lease: Lease, work: MergeWork, tell: Callable[[Message], None]
    ) -> None:
        self._settings, self._link, self._lease, self._work, self._tell = settings, link, lease, work, tell
        self._cache = NodeCache(settings.scratch / "tenants", settings.worker_cache_bytes)
        self._objects = ObjectFetch(self._cache)
        self._stored = {file.path for file in work.stored}
        self._told_at = float("-inf")

    @property
    def _scratch(self) -> ObjectCache:
        return self._cache.objects(self._work.tenant_id)

    def merge(self) -> None:
        """Store all files, and report each. What can never be merged is reported as the end. Raises LeaseNotHeld, Refused, and
        UnreadableWeights."""
        try:
            model = MergedModel(self._base(), self._adapter(), self._work.max_shard_bytes)
            texts = {**model.texts(), README: self._work.readme.encode()}  # their faults are told before hours of work
            for shard in model.shards:
                self._store(shard.name, partial(model.write, shard, check=self._check))
            for name, content in texts.items():
                self._store(name, partial(Path.write_bytes, data=content))
            self._report(MergeReport(done=True))
        except (MergeError, BaseError, DamagedObject) as error:
            log.error("merge %s failed: %s", self._work.placement_id, error)
            self._report(MergeReport(error=str(error)[:2000]))

    def _base(self) -> Path:
        """The base's folder on this node, with the weights that the adapter was trained on."""
        base = BaseFetch(self._settings, self._link, self._cache, partial(self._say, "loading")).local(
            self._work.base, self._lease
        )
        try:
            found = revision_of(Path(base.source))
        except (NoWeights, OSError) as error:
            raise BaseError(f"base model {base.name}: {error}") from None
        if found != base.revision:
            raise BaseError(f"base model {base.name}: the node's weights have revision {found}, not {base.revision}")
        return Path(base.source)

    def _adapter(self) -> dict[str, Path]:
        return {file.path: persist(self._lease, "an adapter", partial(self._fetch, file)) for file in self._work.adapter}

    def _fetch(self, file: AdapterFile) -> Path:
        id, lease = self._work.placement_id, self._lease
        return self._objects.fetch(lambda: self._scratch, file.sha256, lambda: self._link.object(id, lease.token, file.sha256))

    def _store(self, name: str, write: Callable[[Path], object]) -> None:
        if name in self._stored:
            return
        kept = persist(self._lease, name, partial(self._keep, write))
        upload(self._link, self._lease, kept)
        self._scratch.drop(kept.sha256)
        self._report(MergeReport(files=[AdapterFile(path=name, sha256=kept.sha256, bytes=kept.bytes)]))
        log.info("merge %s: %s is stored (%d bytes)", self._work.placement_id, name, kept.bytes)

    def _keep(self, write: Callable[[Path], object]) -> Kept:
        def written(path: Path) -> None:
            write(path)
            self._say("loading")  # syncing, hashing and sending take as long as they do

        with self._cache.relief():
            return self._scratch.keep(written)

    def _report(self, report: MergeReport) -> None:
        def attempt() -> None:
            self._link.merge_report(self._work.placement_id, self._lease.token, report)

        persist(self._lease, "a report", attempt)

    def _check(self) -> None:
        """Between two tensors."""
        self._lease.check()
        if boot_now() - self._told_at >= _TELL_SECONDS:
            self._say("training")

    def _say(self, phase: Phase) -> None:
        """Tell the daemon how far it is. `training` is the phase in which the service expects progress."""
        self._told_at = boot_now()
        id, lease = self._work.placement_id, self._lease
        waits = {id: lease.waits_for} if lease.waits_for is not None else {}
        loading = {id: lease.loading} if lease.loading is not None else {}
        self._tell(ExecutorProgress(phases={id: phase}, waits=waits, loading=loading, at=self._told_at))
