"""Uploads checkpoints and best adapters in the background. Holds no policy: checkpoint_policy.py says when.

It writes and syncs each file locally, then uploads it, and retries both while the disk is full or the service is unreachable,
for as long as the lease lasts.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from uuid import uuid4

from contract.messages.adapter_manifest import AdapterFile, AdapterManifest, Lineage
from contract.messages.placement_messages import CheckpointRef
from contract.messages.upload_messages import UploadRequest
from worker.adapters.job_checkpoint import Tensors, UnreadableWeights, save
from worker.adapters.joined_adapters import rank_factor
from worker.adapters.peft_export import export_peft
from worker.adapters.weights_copies import WeightsCopy
from worker.api_client import FenceStale, PlacementLink, Refused
from worker.data.disk_full import DiskFull, room_needed
from worker.data.executor_folders import ExecutorFolders
from worker.data.object_cache import Kept
from worker.executor.background_worker import BackgroundWorker
from worker.executor.inbox import Callback, Inbox
from worker.executor.placement.job_run import JobRun
from worker.executor.placement.placement_lease import Lease, LeaseNotHeld
from worker.executor.placement.placement_run import PlacementRun
from worker.executor.retry import persist
from worker.policy.job_record import JobKey, JobProgress
from worker.replicas.base_loader import DeviceBase

log = logging.getLogger(__name__)

_ADAPTERS_AT_ONCE = 2  # the last jobs of a task end together: so many are written and hashed while as many are sent


@dataclass(frozen=True)
class JobSnapshot:
    """A host copy of a job's state at one moment."""

    index: int
    progress: JobProgress
    tensors: Tensors


@dataclass(frozen=True)
class BestAdapter:
    """The best weights of a job that ends, which are let go once they are written. arena_rows: those in which it trained.
    averaged_steps: the steps after which it had the weights whose mean they are; none where they are those of one step."""

    run: JobRun
    base: DeviceBase
    weights: WeightsCopy
    arena_rows: tuple[int, int] | None
    averaged_steps: tuple[int, ...] = ()


class ArtifactUploader:
    """inbox: the training loop's, which calls `leave(task, lost, why)` where a placement cannot continue. on_lost: as of the
    adapter store, from any thread. adapters_left: those that the loop gave it and has not dealt with yet. What is on its way is
    the executor's own: storage may be away for longer than others keep a file that nobody reads."""

    def __init__(
        self,
        link: PlacementLink,
        folders: ExecutorFolders,
        inbox: Inbox,
        leave: Callable[[PlacementRun, bool, str], None],
        on_lost: Callable[[JobKey, str], None],
    ) -> None:
        self._link, self._inbox, self._leave, self._on_lost = link, inbox, leave, on_lost
        self._own, self._cache = folders.own, folders.cache
        self._checkpoints = BackgroundWorker("checkpoint uploads")
        self._exports = BackgroundWorker("adapter exports", _ADAPTERS_AT_ONCE)
        self._adapters = BackgroundWorker("adapter uploads", _ADAPTERS_AT_ONCE)
        self.adapters_left = 0
        self._lock, self._copied_bytes = threading.Lock(), 0

    @property
    def copied_bytes(self) -> int:
        """Of host copies for checkpoints that are not written yet."""
        return self._copied_bytes

    def keep_adapter(self, task: PlacementRun, best: BestAdapter, then: Callable[[AdapterManifest], None]) -> None:
        """Export and upload the best adapter of a job that ends: in other threads, since storage may be away for long."""
        self.adapters_left += 1
        self._exports.submit(partial(self._export_adapter, task, best, then))

    def keep_checkpoint(
        self, task: PlacementRun, snapshots: list[JobSnapshot], then: Callable[[dict[int, CheckpointRef]], None]
    ) -> None:
        """Write and upload the jobs' states, all taken at one moment."""
        self._count(snapshots, 1)
        self._checkpoints.submit(partial(self._guarded, task, lambda: self._save(task, snapshots, then)))

    def _export_adapter(self, task: PlacementRun, best: BestAdapter, then: Callable[[AdapterManifest], None]) -> None:
        exported = False
        try:
            exported = self._guarded(task, lambda: self._export(task, best, then))
        except UnreadableWeights as error:
            self._on_lost(best.run.key, str(error))
        finally:
            best.weights.let_go()
        if not exported:
            self._inbox.put(self._dealt_with, patient=True)

    def _store_adapter(self, task: PlacementRun, index: int, files: Sequence[Kept], then: Callback) -> None:
        self._guarded(task, lambda: self._send(task, index, files, then))
        self._inbox.put(self._dealt_with, patient=True)

    def _dealt_with(self) -> None:
        self.adapters_left -= 1

    def _guarded(self, task: PlacementRun, work: Callback) -> bool:
        """Whether it was done."""
        try:
            work()
            return True
        except LeaseNotHeld as error:
            log.info("pending uploads of placement %s are dropped: %s", task.key, error)
        except FenceStale:
            self._inbox.put(partial(self._leave, task, False, "the service has ended it"))
        except Refused as error:
            self._inbox.put(partial(self._leave, task, True, f"storage refused an upload: {error}"))
        return False

    def _export(self, task: PlacementRun, best: BestAdapter, then: Callable[[AdapterManifest], None]) -> None:
        run, base = best.run, best.base
        assert run.best is not None
        layout, config = base.trainer.arena.layout, run.job.config
        times = rank_factor(target for target in layout.targets if target.module in config.target_modules)
        task.lease.check()  # one that nobody wants any more is not read
        targets = layout.split(best.weights.read())

        def write() -> dict[str, Kept]:
            own = self._own
            with self._cache.relief(), room_needed(own.folder), TemporaryDirectory(prefix="new-", dir=own.folder) as new:
                paths = export_peft(Path(new), layout.targets, targets, config=config, base_model=base.ref.name)
                # by names of its own: another job may have exported the same bytes, and drop them
                return {path.name: own.adopt(path, f"export-{uuid4()}") for path in paths}

        began = time.time()
        kept = persist(task.lease, f"the adapter of job {run.index}", write)
        task.phases.over("export adapter", began, run.index)
        manifest = AdapterManifest(
            files=[AdapterFile(path=name, sha256=file.sha256, bytes=file.bytes) for name, file in kept.items()],
            step=run.best.step,
            val_loss=run.best.val_loss,
            averaged_steps=best.averaged_steps,
            peft_rank=times * config.rank if times > 1 else None,
            arena_rows=best.arena_rows,
            lineage=Lineage(
                task_id=task.placement.task_id,
                job_id=run.job_id,
                base_model=base.ref.name,
                base_revision=base.ref.revision,
                dataset_sha256=task.placement.train_file.sha256,
                config=config,
            ),
        )
        self._adapters.submit(partial(self._store_adapter, task, run.index, list(kept.values()), partial(then, manifest)))

    def _send(self, task: PlacementRun, index: int, files: Sequence[Kept], then: Callback) -> None:
        began = time.time()
        try:
            for file in files:
                upload(self._link, task.lease, file)
        finally:
            for file in files:
                self._own.drop(file.path.name)
        task.phases.over("upload adapter", began, index, bytes=sum(file.bytes for file in files))
        self._inbox.put(then)

    def _save(self, task: PlacementRun, snapshots: list[JobSnapshot], then: Callable[[dict[int, CheckpointRef]], None]) -> None:
        """Writes all before it uploads any: storage may be away for long, and each host copy is given up once it is written."""
        made, written = dict[int, CheckpointRef](), dict[int, Kept]()
        tenant = task.placement.tenant_id
        try:
            while snapshots:
                index, step = snapshots[0].index, snapshots[0].progress.step
                if task[index].unfinished:  # else its adapter was stored meanwhile
                    kept = written[index] = persist(task.lease, "a checkpoint", partial(self._written, snapshots[0]))
                    made[index] = CheckpointRef(step=step, sha256=kept.sha256, bytes=kept.bytes)
                self._count(snapshots[:1], -1)
                del snapshots[0]
            for index, kept in written.items():
                try:
                    if task[index].unfinished:
                        upload(self._link, task.lease, kept)
                finally:
                    self._leave_to_cache(tenant, kept)
        except (LeaseNotHeld, FenceStale, Refused):  # the placement leaves, or has left: nothing points to them
            for ref in made.values():
                self._cache.drop_object(tenant, ref.sha256)
            for kept in written.values():
                self._own.drop(kept.path.name)
            self._count(snapshots, -1)
            raise
        self._inbox.put(partial(then, made), patient=not task.leaving)

    def _count(self, snapshots: Sequence[JobSnapshot], sign: int) -> None:
        with self._lock:
            self._copied_bytes += sign * sum(snapshot.tensors.bytes for snapshot in snapshots)

    def _written(self, snapshot: JobSnapshot) -> Kept:
        with self._cache.relief():
            # by a name of its own: another job may have the same bytes, and drop them
            return self._own.keep(partial(save, progress=snapshot.progress, tensors=snapshot.tensors), f"checkpoint-{uuid4()}")

    def _leave_to_cache(self, tenant: str, kept: Kept) -> None:
        """Name the file by its bytes, by which it is found when its task comes again."""
        with suppress(FileNotFoundError, DiskFull), room_needed(kept.path):  # then it is fetched
            self._cache.objects(tenant).link(kept.path, kept.sha256)
        self._own.drop(kept.path.name)


def upload(link: PlacementLink, lease: Lease, kept: Kept) -> None:
    """Bring an object to storage, unless it is there. Retries while the lease lasts; raises LeaseNotHeld and Refused."""
    request = UploadRequest(fence=lease.fence, sha256=kept.sha256, bytes=kept.bytes, direct=True)

    def attempt() -> None:
        grant = link.grant(lease.placement_id, lease.token, request)
        if not grant.exists:
            link.put(grant, kept.path)

    persist(lease, "an upload", attempt)
