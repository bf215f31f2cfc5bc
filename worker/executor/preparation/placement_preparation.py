"""Prepares a placement before its jobs can be scheduled: base, rows as tokens, checkpoints. Schedules nothing."""

import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from torch import Tensor

from contract.evaluation.text_evaluation import Evaluation
from contract.job_config import JobConfig
from contract.messages.placement_messages import FileRef, Placement
from worker.adapters.job_checkpoint import CheckpointError, load_progress
from worker.adapters.warm_start import StartAdapter, WarmStartError, read_peft
from worker.api_client import PlacementLink, Unreachable
from worker.data.dataset import DataSet, TokenRows, split
from worker.data.evaluation_prompts import PromptFile, prompt_reading
from worker.data.executor_folders import ExecutorFolders
from worker.data.object_cache import ObjectCache
from worker.data.token_cache import stream_of
from worker.data.token_stream import TokenStream
from worker.data.tokenising.file_tokeniser import DataError, Reading
from worker.data.tokenising.row_tokeniser import RowTokeniser
from worker.executor.placement.placement_lease import Lease
from worker.executor.placement.placement_phases import PlacementPhases
from worker.executor.preparation.executor_base import BaseUse, ExecutorBase
from worker.executor.preparation.first_weights import DrawnBytes, first_weights
from worker.executor.preparation.object_fetch import ObjectFetch
from worker.executor.preparation.parts_clock import PartsClock
from worker.executor.preparation.placement_wants import ranks_of, unfinished, wants_of
from worker.executor.preparation.resumed_files import ResumedFiles
from worker.executor.retry import persist
from worker.model.arena import rows_for
from worker.model.plain.trainer import OutOfMemory
from worker.policy.activations import Activations, Need, choose_activations
from worker.policy.adapter_memory_model import Capacity
from worker.policy.generation_memory import evaluation_bytes
from worker.policy.job_record import JobProgress
from worker.replicas.base_loader import DeviceBase
from worker.replicas.memory_profile import Profiles, held_bytes, keep_profiles, park_bytes, profiles_of
from worker.replicas.ranks.placement_devices import PlacementDevices
from worker.replicas.ranks.rank_group import LoadedBase
from worker.replicas.text_generation import generation_shape
from worker.settings import Settings

log = logging.getLogger(__name__)

_ASKED_TOKENS, _ASKED_RANK = 512, 64  # what a base that is only asked is measured for


class CannotTrain(ValueError):
    """This worker cannot train what the task asks for, and a retry would not help."""


@dataclass(frozen=True)
class Prepared:
    """capacities: what each replica of the base can hold with rows as long as these. checkpoints: by job index, the file of the
    job's state, and its content without tensors."""

    loaded: LoadedBase
    capacities: tuple[Capacity, ...]
    data: DataSet
    checkpoints: dict[int, tuple[Path, JobProgress]]
    activations: Activations
    start: StartAdapter | None = None  # the adapter that all jobs start from
    drawn: dict[int, Tensor] = field(default_factory=dict)  # first weights by job index, float32 [rank, W]
    prompts: PromptFile | None = None  # of its evaluation
    rows: tuple[int, ...] = ()  # of the arena, for each of its unfinished jobs

    def draw(self, configs: Mapping[int, JobConfig]) -> "Prepared":
        """The same for other jobs, which begin with these configurations and no checkpoints."""
        arena, park_bytes = self.loaded.base.trainer.arena, self.capacities[0].park_bytes
        with first_weights(arena, configs, self.start, park_bytes) as drawn:
            return replace(self, checkpoints={}, drawn=drawn())

    def needs(self, evaluation: Evaluation | None) -> list[Need]:
        """What the task needs of each replica. evaluation: whose texts the first replica generates."""
        kept = self._generation_bytes(evaluation, max(self.rows, default=0)) if evaluation is not None else 0
        return [
            Need(capacity, self.data.longest, self.rows, self.activations, kept if place == 0 else 0)
            for place, capacity in enumerate(self.capacities)
        ]

    def _generation_bytes(self, evaluation: Evaluation, rows: int) -> int:
        """Bytes that its evaluation wants kept: keys and values of a few texts at once, and an adapter's rows."""
        base, prompts = self.loaded.base, self.data.validation if self.prompts is None else self.prompts.rows
        tokens = min(base.max_positions, prompts.longest + evaluation.max_new_tokens)
        wave = evaluation_bytes(generation_shape(base.trainer), evaluation.max_prompts, tokens)
        return wave + round(rows * self.capacities[0].model.per_row)

    @property
    def files(self) -> dict[int, Path]:
        """The checkpoint files by job index."""
        return {index: path for index, (path, _) in self.checkpoints.items()}


def capacities_of(loaded: LoadedBase, settings: Settings, scratch: ObjectCache) -> tuple[Capacity, ...]:
    """What each replica of a checked base holds where nothing trains: the base and adapters that are asked. Raises
    CannotTrain."""
    base = loaded.base
    tokens = min(_ASKED_TOKENS, base.max_positions)
    profiles = _memory_profiles(base, tokens, scratch)
    keep_profiles(base.trainer, base.ref, tokens, scratch)
    return loaded.capacities(profiles, settings, _ASKED_RANK)


class Preparation:
    """Fetches and reads for one placement while its lease lasts."""

    def __init__(
        self,
        link: PlacementLink,
        folders: ExecutorFolders,
        placement: Placement,
        lease: Lease,
        phases: PlacementPhases,
        settings: Settings,
        tokeniser: RowTokeniser,
        drawn: DrawnBytes,
    ) -> None:
        """drawn: of all preparations of the executor, as the tokeniser."""
        self._tokeniser, self._drawn = tokeniser, drawn
        self._link, self._placement, self._lease, self._phases, self._settings = link, placement, lease, phases, settings
        self._scratch, self._cache, self._resumed = folders.scratch, folders.cache, ResumedFiles(folders.own, placement)
        self._objects = ObjectFetch(folders.cache)

    def prepare(self, held: ExecutorBase, devices: PlacementDevices) -> Prepared:
        """Raises CannotTrain, BaseError, Crowded, DataError, CheckpointError, UnreadableWeights, DamagedObject, LeaseNotHeld,
        and Refused if the service does not serve a file."""
        clock, wants = PartsClock(self._phases), wants_of(self._placement)
        with (
            self._resumed.kept_if_done(),
            held.use(self._placement.base, devices, self._lease, wants) as used,
            used.streams_kept_if_done(),
        ):
            try:
                _check_sharding(self._placement, used.loaded)
                clock.note("base")
                return self._prepared(used, clock)
            except (CannotTrain, DataError, CheckpointError):
                used.await_revision()  # another base than the task is pinned to is said rather than what follows from it
                raise

    def _prepared(self, used: BaseUse, clock: PartsClock) -> Prepared:
        loaded = used.loaded
        base = loaded.base
        checkpoints = {index: (path, load_progress(path)) for index, path in self._checkpoints().items()}
        start = self._start(base)
        clock.note("checkpoints")
        new = {job.index: job.config for job in unfinished(self._placement) if job.proposed and job.index not in checkpoints}
        device = base.trainer.backbone.device
        parked = park_bytes(device, self._settings, len(loaded.devices))
        beside = device.type == "cuda"  # on a CPU they would be part of what the executor holds for good
        with first_weights(base.trainer.arena, new, start, parked, beside, self._lease.check, self._drawn) as drawn:
            data, prompts = self._rows(used)
            clock.note("rows")
            used.await_kernels()
            clock.note("kernels")
            ranks = ranks_of(self._placement)
            with used.turn():
                profiles = _memory_profiles(base, data.longest, self._scratch)
                capacities = loaded.capacities(profiles, self._settings, max(ranks, default=0))
            rows = tuple(map(rows_for, ranks))
            activations = choose_activations(capacities[0], data.longest, rows, self._settings.worker_recompute)
            clock.note("memory profile")
            used.await_revision()
            keep_profiles(base.trainer, base.ref, data.longest, self._scratch)
            clock.note("revision")
            with nullcontext() if beside else used.turn():  # nobody's capacities are measured meanwhile
                prepared = Prepared(loaded, capacities, data, checkpoints, activations, start, drawn(), prompts, rows)
        clock.note("first weights")
        log.info("placement %s is prepared: %s", self._placement.placement_id, clock)
        return prepared

    def _rows(self, used: BaseUse) -> tuple[DataSet, PromptFile | None]:
        """What is trained on, and the prompts of its evaluation, if they are in a file of their own."""
        train, held_out = self._placement.train_file, self._placement.validation_file
        base = used.loaded.base
        reading = self._reading(base)
        validation = self._stream(held_out, reading, used) if held_out is not None else None
        data = split(self._placement.spec, self._stream(train, reading, used), validation)
        prompts = self._prompts(reading, used)
        _check_fits(data, base)
        if prompts is not None and len(prompts.rows):
            _check_fits(prompts.rows, base)
        return data, prompts

    def _prompts(self, reading: Reading, used: BaseUse) -> PromptFile | None:
        ref = self._placement.prompts_file
        return PromptFile.of(self._stream(ref, prompt_reading(reading), used)) if ref is not None else None

    def _start(self, base: DeviceBase) -> StartAdapter | None:
        """The adapter that the task starts from, checked against the base and every job. Raises CannotTrain."""
        ref = self._placement.warm_start
        if ref is None:
            if self._placement.spec.warm_start is not None:
                raise CannotTrain(f"adapter {self._placement.spec.warm_start.adapter_id} to start from was not handed over")
            return None
        files = {file.path: self._object(file.sha256) for file in ref.files}
        try:
            start = read_peft(files, base.trainer.arena.layout)
            for job in self._placement.jobs:
                start.check(job.config)
        except WarmStartError as error:
            raise CannotTrain(f"warm_start.adapter_id {ref.adapter_id}: {error}") from None
        return start

    def _checkpoints(self) -> dict[int, Path]:
        refs = {job.index: job.checkpoint.sha256 for job in unfinished(self._placement) if job.checkpoint is not None}
        return {index: self._resumed.keep(index, self._lease, partial(self._object, sha256)) for index, sha256 in refs.items()}

    def _object(self, sha256: str) -> Path:
        return self._fetch(sha256, partial(self._link.object, self._lease.placement_id, sha256=sha256))

    def _reading(self, base: DeviceBase) -> Reading:
        """How the task's rows become tokens with this base."""
        placement = self._placement
        created_at = placement.created_at
        if base.reads_date and created_at is None:  # by an older service
            log.warning(
                "placement %s does not say when its task was created; its template writes today", placement.placement_id
            )
            created_at = datetime.now(UTC)
        reader = base.reader if created_at is None else base.reader.at(created_at)
        spec, dated = placement.spec, created_at if base.reads_date else None
        return Reading(reader, spec.objective, spec.training.max_seq_len, base.tokenizer, dated, Path(base.ref.source))

    def _stream(self, ref: FileRef, reading: Reading, used: BaseUse) -> TokenStream:
        """The file as a token stream, which all ranks map. Fetches it only if it was not tokenised here before."""
        link, key = self._link, self._lease.placement_id
        file = self._cache.file(self._placement.tenant_id, ref.sha256)

        def fetch() -> Path:
            blocks = partial(link.file, key, file_id=ref.file_id)
            return self._objects.fetch(lambda: file.content, ref.sha256, lambda: blocks(token=self._lease.token))

        def attempt() -> TokenStream:
            try:
                stream = stream_of(file, reading, fetch, self._lease.check, self._tokeniser.tokenise)
                used.open_stream(stream)
                return stream
            except FileNotFoundError as error:  # its tenant deleted the file, which erases its streams
                raise Unreachable(f"the file was removed from this node meanwhile: {error}") from None

        return persist(self._lease, "tokenising", attempt)

    def _fetch(self, sha256: str, blocks: Callable[..., Iterable[bytes]]) -> Path:
        """The tenant's object of this sha256 as a local file. `blocks` downloads, given a token."""

        def attempt() -> Path:
            folder = partial(self._cache.objects, self._placement.tenant_id)
            return self._objects.fetch(folder, sha256, lambda: blocks(token=self._lease.token))

        return persist(self._lease, "a download", attempt)


def _memory_profiles(base: DeviceBase, longest: int, scratch: ObjectCache) -> Profiles:
    """Raises CannotTrain where the base leaves no memory to train in."""
    try:
        return profiles_of(base.trainer, base.ref, longest, scratch)
    except OutOfMemory as error:
        raise CannotTrain(
            f"base model {base.ref.name} takes {held_bytes(base.trainer) >> 20} MiB here and leaves no memory for a pass "
            f"of {error.tokens} tokens; take a smaller base, precision nf4, or a worker with more memory"
        ) from None


def _check_sharding(placement: Placement, loaded: LoadedBase) -> None:
    if loaded.sentence is not None and placement.spec.evaluation is not None:
        raise CannotTrain(
            f"evaluation: base model {loaded.base.ref.name} generates no texts here, since {loaded.sentence}; "
            "leave evaluation out, or take precision nf4, a smaller base, or a worker with more memory on each device"
        )


def _check_fits(data: DataSet | TokenRows, base: DeviceBase) -> None:
    if data.longest > base.max_positions:
        raise DataError(
            f"rows of {data.longest + 1} tokens are left within training.max_seq_len, but base model {base.ref.name} has "
            f"{base.max_positions} positions; set training.max_seq_len to at most {base.max_positions}"
        )
    if data.largest_token >= base.vocabulary:
        raise DataError(
            f"rows hold {base.token_text([data.largest_token])!r} (token {data.largest_token}), which base model "
            f"{base.ref.name} lacks: it knows 0 to {base.vocabulary - 1}; take it out of the rows, or take another base"
        )
