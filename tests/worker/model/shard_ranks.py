"""Processes that are ranks of a sharded tiny model, and run the passes that a test gives them, on a CPU or a GPU each. For
tests alone."""

import hashlib
import multiprocessing
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.worker.model import device_case, tiny
from worker.model.arena import Arena
from worker.model.backbone import Backbone
from worker.model.base_weight_reader import UnreadTensor, in_folder
from worker.model.cuda.device_arena import DeviceArena
from worker.model.cuda.device_trainer import DeviceTrainer
from worker.model.flat_batch import Segment
from worker.model.plain.trainer import Trainer
from worker.model.row_optimizer import RowUpdate
from worker.model.sharding.rank_collectives import GatherFailed, RankCollectives, open_store, reach_store
from worker.model.sharding.weight_shards import BACKWARD, FORWARD, Direction, Sharding, WeightShards, layer_unit

SECONDS = 600.0
LATE_CYCLES = 1_000_000_000  # of a GPU, about half a second
ON_GPU = {"fused llama": device_case.llama, "fused qwen3": device_case.qwen}  # of shapes that the fused layers take, in bf16


@dataclass(frozen=True)
class Case:
    """passes: of each rank, the lengths of the rows of each of its passes. layers, ends: what is sharded. folder: of the model;
    None: it is at hand."""

    config: str
    passes: tuple[tuple[tuple[int, ...], ...], ...]
    layers: tuple[int, ...]
    depth: int = 5
    ends: bool = False
    precision: Any = "bf16"
    recompute: bool = False
    alone: bool = False  # rank 0 runs a pass of the base that nobody else has
    late: bool = False  # rank 0's GPU comes late to what the last backward prefetches
    folder: str | None = None
    dtype: torch.dtype = torch.float32  # of the computation, on a model that is read


@dataclass
class Seen:
    """losses of each pass; the arena's gradient, and its weights after an update; gathers begun in all. mapped: whether NCCL
    mapped the ranks' memory into each other. read: bytes that were
    read of each tensor in the folder. units: sha256 of each unit as it was gathered from all ranks."""

    losses: list[float] = field(default_factory=list)
    gradient: Tensor | None = None
    weights: Tensor | None = None
    gathers: int = 0
    mapped: bool = False
    held_bytes: int = 0
    refusal: str | None = None
    read: dict[str, int] = field(default_factory=dict)
    units: dict[str, str] = field(default_factory=dict)


def model(case: Case) -> Any:
    if case.config in ON_GPU:
        return ON_GPU[case.config]().to(torch.bfloat16)
    config = tiny.configs()[case.config]
    if config.num_hidden_layers != case.depth:
        config.num_hidden_layers = case.depth
        if hasattr(config, "layer_types"):
            config.layer_types = config.layer_types[:1] * case.depth
    return tiny.model(config)


def backbone_of(case: Case, device: torch.device | str = "cpu", sharding: Sharding | None = None) -> Backbone:
    if case.folder is not None:
        return Backbone.load(case.folder, device, case.dtype, case.precision, sharding)
    return Backbone.of(model(case), device, case.precision, sharding)


def digest(tensors: Sequence[Tensor]) -> str:
    whole = hashlib.sha256()
    for tensor in tensors:
        whole.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return whole.hexdigest()


def count_reads(monkeypatch: pytest.MonkeyPatch, read: dict[str, int]) -> None:
    """Note the bytes of each tensor that are read from folders."""

    def counting(name: str, unread: UnreadTensor) -> UnreadTensor:
        def rows(some: slice) -> Tensor:
            found = unread.read(some)
            read[name] = read.get(name, 0) + found.nbytes
            return found

        return replace(unread, read=rows)

    monkeypatch.setattr(
        "worker.model.backbone.in_folder",
        lambda source, pinned: {n: counting(n, u) for n, u in in_folder(source, pinned).items()},
    )


def trainer_of(backbone: Backbone) -> Trainer:
    """As an executor makes it; on a GPU without captured passes, which a sharded base has not."""
    if backbone.device.type == "cpu":
        return Trainer(backbone, Arena(backbone.targets, 24))
    trainer = DeviceTrainer(backbone, DeviceArena(backbone.targets, 24, backbone.device, torch.bfloat16))
    trainer.graph_tokens = 0
    return trainer


def segments_of(trainer: Trainer, rank: int, passes: Sequence[Sequence[int]]) -> list[list[Segment]]:
    """Each pass: the rank's two adapters, whose rows alternate."""
    slots = [trainer.arena.attach(4, 4 + rank), trainer.arena.attach(8, 8)]
    made = [
        [Segment(slots[place % 2], tiny.examples(list(rows), seed=100 * rank + place), loss_weight=0.1)]
        for place, rows in enumerate(passes)
    ]
    tiny.randomise(trainer, [Segment(slot, []) for slot in slots])
    return made


def run(trainer: Trainer, rank: int, case: Case, seen: Seen) -> Seen:
    """The rank's passes twice, forward alone first, so that buffers are used again."""
    passes, gathers = segments_of(trainer, rank, case.passes[rank]), trainer.backbone.gathers
    if case.alone:
        if rank == 0:
            seen.losses.append(trainer.evaluate([Segment(None, tiny.examples([7, 5]))])[0].total.item())
        elif trainer.backbone.shards is not None:
            trainer.backbone.shards.run_empty_pass(False)
    with gathers.together(len(passes), False, lambda: None):
        seen.losses += [trainer.evaluate(one)[0].total.item() for one in passes]
    with gathers.together(len(passes), True, lambda: None):
        seen.losses += [trainer.train(one, case.recompute)[0].total.item() for one in passes]
    seen.gradient = trainer.arena.grad.cpu().clone()
    trainer.update([RowUpdate(slot, 1e-2, 0.01, 1, 1.0) for slot in trainer.arena.slots])
    seen.weights = trainer.arena.master.cpu().clone()
    return seen


def reference(case: Case, rank: int, kind: str = "cpu") -> Seen:
    """The same passes over a whole base, in this process."""
    torch.set_num_threads(1)
    return run(trainer_of(backbone_of(case, kind)), rank, case, Seen())


def come_late(shards: WeightShards) -> None:
    """Keep the GPU busy before it computes a backward's last layer, and so before it gathers what is prefetched then."""
    use = shards.use

    def late(unit: str, direction: Direction) -> None:
        if (unit, direction) == (layer_unit(0), BACKWARD):
            torch.cuda._sleep(LATE_CYCLES)
        use(unit, direction)

    shards.use = late  # type: ignore[method-assign]


def units_of(shards: WeightShards) -> dict[str, str]:
    """All ranks ask at the same time."""
    found = {}
    for unit in shards._order:
        shards.use(unit, FORWARD)
        found[unit] = digest(shards.views(unit))
    return found


class Ranks:
    """`world` processes; each case runs on all. kind: of device, cpu or cuda; each has one of its own."""

    def __init__(self, world: int, kind: str = "cpu") -> None:
        context = multiprocessing.get_context("spawn")
        self._pipes: list[Connection] = []
        self.processes = []
        for rank in range(world):
            ours, its = context.Pipe()
            self._pipes.append(ours)
            self.processes.append(context.Process(target=_serve, args=(rank, world, its, kind), daemon=True))
        for process in self.processes:
            process.start()
        port = self._pipes[0].recv()
        for pipe in self._pipes[1:]:
            pipe.send(port)

    def run(self, case: Case) -> list[Seen]:
        for rank in range(len(self._pipes)):
            self.begin_on(rank, case)
        return [pipe.recv() for pipe in self._pipes]

    def begin_on(self, rank: int, case: Case) -> None:
        self._pipes[rank].send(case)

    def answer(self, rank: int) -> Seen:
        found: Seen = self._pipes[rank].recv()
        return found

    def close(self) -> None:
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.join()


def _serve(rank: int, world: int, pipe: Connection, kind: str) -> None:
    torch.set_num_threads(1)
    device = torch.device("cpu")
    if kind == "cuda":
        device = torch.device("cuda", rank)
        torch.cuda.set_device(device)
    if rank == 0:
        store = open_store("127.0.0.1", world, SECONDS)
        pipe.send(store.port)
    else:
        store = reach_store("127.0.0.1", pipe.recv(), world, SECONDS)
    collectives = RankCollectives(store, rank, world, device, SECONDS)
    begun = [0]
    gather = collectives.gather

    def counted(whole: Tensor, part: Tensor) -> Any:
        begun[0] += 1
        return gather(whole, part)

    collectives.gather = counted  # type: ignore[method-assign]
    read: dict[str, int] = {}
    count_reads(pytest.MonkeyPatch(), read)
    while True:
        case: Case = pipe.recv()
        sharding = Sharding(rank, world, frozenset(case.layers), case.ends)
        read.clear()
        backbone = backbone_of(case, device, sharding)
        assert backbone.shards is not None
        backbone.shards.connect(collectives)
        backbone.shards.accompany = lambda: None
        if case.late and rank == 0:
            come_late(backbone.shards)
        trainer, seen, begun[0] = trainer_of(backbone), Seen(read=dict(read)), 0
        storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in backbone.tensors()}
        seen.held_bytes = sum(storages.values())
        try:
            run(trainer, rank, case, seen)
            if case.folder is not None:
                seen.units = units_of(backbone.shards)
        except GatherFailed as error:
            seen.refusal = str(error)
        seen.gathers = begun[0]
        seen.mapped = collectives._shared is not None
        collectives.unshare()
        pipe.send(seen)
