"""What a placement needs before its jobs can be scheduled: the base, its rows as tokens, its checkpoints. Schedules nothing."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from contract.states import JOB_TERMINAL
from contract.wire import FileRef, JobAssignment, Placement
from worker.adapters.job_checkpoint import Progress, load_progress
from worker.adapters.warm_start import WarmStart, WarmStartError, read_peft
from worker.api_client import PlacementLink, Unreachable
from worker.data.dataset import DataError, DataSet, load
from worker.data.object_cache import ObjectCache, WrongBytes
from worker.executor.placement_lease import Lease
from worker.model.arena import rows_for
from worker.model.plain.trainer import OutOfMemory
from worker.policy.activations import Activations, chosen
from worker.policy.admission import Capacity
from worker.replicas.base_loader import Base
from worker.replicas.memory_profile import Profiles, capacity_of, held_bytes, profiles_of
from worker.retry import persist
from worker.settings import Settings


class CannotTrain(ValueError):
    """This worker cannot train what the task asks for; no other try would change that."""


@dataclass(frozen=True)
class Prepared:
    """capacities: what each replica of the base can hold of rows as long as these. checkpoints: by job index, where the job's
    state lies and what it says but for its tensors."""

    bases: tuple[Base, ...]
    capacities: tuple[Capacity, ...]
    data: DataSet
    checkpoints: dict[int, tuple[Path, Progress]]
    activations: Activations
    start: WarmStart | None = None  # the adapter that all jobs start from


class Preparation:
    """Fetches and reads for one placement, for as long as its lease lasts."""

    def __init__(
        self, link: PlacementLink, scratch: ObjectCache, placement: Placement, lease: Lease, settings: Settings
    ) -> None:
        self._link, self._scratch, self._placement, self._lease = link, scratch, placement, lease
        self._settings = settings

    def prepare(self, load_bases: Callable[[], tuple[Base, ...]]) -> Prepared:
        """Raises CannotTrain, BaseError, DataError, CheckpointError, LeaseOver, and Refused where the service will not serve a
        file."""
        train = self._file(self._placement.train_file)
        held_out = self._placement.validation_file
        validation = self._file(held_out) if held_out is not None else None
        bases = load_bases()
        base = bases[0]
        data = load(self._placement.spec, train, validation, base.reader, self._lease.check)
        _check_fits(data, base)
        checkpoints = {index: (path, load_progress(path)) for index, path in self._checkpoints().items()}
        start = self._start(base)
        profiles = self._profiles(base, data.longest)
        capacities = tuple(capacity_of(profiles, each.trainer, self._settings, len(bases)) for each in bases)
        rows = [rows_for(job.config.rank) for job in self._unfinished]
        activations = chosen(capacities[0], data.longest, rows, self._settings.worker_recompute)
        return Prepared(bases, capacities, data, checkpoints, activations, start)

    def _profiles(self, base: Base, longest: int) -> Profiles:
        """Raises CannotTrain where the base leaves no memory to train in."""
        try:
            return profiles_of(base.trainer, base.ref, longest, self._scratch)
        except OutOfMemory as error:
            raise CannotTrain(
                f"base model {base.ref.name} takes {held_bytes(base.trainer) >> 20} MiB here and leaves no memory for a pass "
                f"of {error.tokens} tokens; take a smaller base, precision nf4, or a worker with more memory"
            ) from None

    @property
    def _unfinished(self) -> list[JobAssignment]:
        return [job for job in self._placement.jobs if job.status not in JOB_TERMINAL]

    def _start(self, base: Base) -> WarmStart | None:
        """The adapter that the task starts from, checked against the base and every job. Raises CannotTrain."""
        ref, link = self._placement.warm_start, self._link
        if ref is None:
            if self._placement.spec.warm_start is not None:
                raise CannotTrain(f"adapter {self._placement.spec.warm_start.adapter_id} to start from was not handed over")
            return None
        fetch = partial(link.object, self._lease.placement_id)
        files = {file.path: self._fetch(file.sha256, partial(fetch, sha256=file.sha256)) for file in ref.files}
        try:
            start = read_peft(files, base.trainer.arena.layout)
            for job in self._placement.jobs:
                start.check(job.config)
        except WarmStartError as error:
            raise CannotTrain(f"warm_start.adapter_id {ref.adapter_id}: {error}") from None
        return start

    def _checkpoints(self) -> dict[int, Path]:
        link, key = self._link, self._lease.placement_id
        refs = {job.index: job.checkpoint.sha256 for job in self._unfinished if job.checkpoint is not None}
        return {index: self._fetch(sha256, partial(link.object, key, sha256=sha256)) for index, sha256 in refs.items()}

    def _file(self, ref: FileRef) -> Path:
        link, key = self._link, self._lease.placement_id
        return self._fetch(ref.sha256, partial(link.file, key, file_id=ref.file_id))

    def _fetch(self, sha256: str, blocks: Callable[..., Iterable[bytes]]) -> Path:
        """The object of this sha256 as a local file. `blocks` downloads, given a token."""

        def attempt() -> Path:
            try:
                return self._scratch.fetch(sha256, lambda: blocks(token=self._lease.token))
            except WrongBytes as error:
                raise Unreachable(str(error)) from None

        return persist(self._lease, "a download", attempt)


def _check_fits(data: DataSet, base: Base) -> None:
    if data.longest > base.max_positions:
        raise DataError(
            f"rows of {data.longest + 1} tokens are left within training.max_seq_len, but base model {base.ref.name} has "
            f"{base.max_positions} positions; set training.max_seq_len to at most {base.max_positions}"
        )
    largest = max(int(example.tokens.max()) for example in data.sequences)
    if largest >= base.vocabulary:
        raise DataError(
            f"the tokenizer of base model {base.ref.name} makes token {largest}, but the model knows {base.vocabulary}; "
            "its folder mixes two models"
        )
