"""A rank's shards of the frozen base, and the two buffers that layers are gathered into just before a pass reads them.

A unit is what is gathered at once: a layer's linear maps (norms and biases stay resident), the embedding, or the head. Its
tensors lie one behind the other in one block of bytes, as they are stored (codes, where the base is quantised), of which each
rank keeps an equal part. Weights are views of a buffer, made once, so what reads them needs no copy and no new address. Units
take turns in the two buffers in the order that a pass reads them, so the next one is gathered while one computes, in both
directions.

Every rank runs the same passes (`together`), and so the same gathers. Knows no adapters and no jobs.
"""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from worker.model.sharding.gather_memory import GatherMemory
from worker.model.sharding.rank_collectives import Finish, GatherFailed, RankCollectives

ALIGNMENT = 256  # bytes: as strict as any kernel wants its operands
Direction = Literal[1, -1]
FORWARD: Direction = 1
BACKWARD: Direction = -1
EMBEDDING_UNIT, HEAD_UNIT = "embedding", "head"


def layer_unit(layer: int) -> str:
    """The name of a layer's unit."""
    return f"layer {layer}"


@dataclass(frozen=True)
class Sharding:
    """What a rank is to shard. layers: by index. ends: embedding and head, which are two matrices then."""

    rank: int
    world: int
    layers: frozenset[int]
    ends: bool = False


class Gathers(Protocol):
    """What a pass does before it reads a part of the base; nothing where all of it is resident. Units by their names."""

    def use(self, unit: str, direction: Direction) -> None:
        """The unit's weights are read from now on, until the next `use`. On a GPU: by the current stream. A pass says so of
        resident layers, too: the buffer of the unit before them is free then."""

    def use_in_backward(self, x_TK: Tensor, unit: str) -> Tensor:
        """The same tensor, before whose gradient goes on into the unit its weights are gathered."""

    def one_pass(self, backward: bool) -> AbstractContextManager[None]:
        """Within it a pass runs, with a backward or without."""

    def together(self, own: int, backward: bool, on_progress: Callable[[], None]) -> AbstractContextManager[None]:
        """Within it this rank runs `own` passes of one kind. All ranks come, agree on the most, and run empty passes at its
        end up to that number. What the current stream is given afterwards runs once every gather has landed."""


class AllResident:
    """A base of which every rank has all, or whose weights are not needed (a pass that measures memory)."""

    def use(self, unit: str, direction: Direction) -> None:
        return

    def use_in_backward(self, x_TK: Tensor, unit: str) -> Tensor:
        return x_TK

    def one_pass(self, backward: bool) -> AbstractContextManager[None]:
        return nullcontext()

    def together(self, own: int, backward: bool, on_progress: Callable[[], None]) -> AbstractContextManager[None]:
        return nullcontext()


ALL_RESIDENT = AllResident()


@dataclass(frozen=True)
class _Unit:
    """places: of each tensor, its first byte, shape and dtype. part: this rank's bytes."""

    places: tuple[tuple[int, torch.Size, torch.dtype], ...]
    part: Tensor


class WeightShards:
    """Filled by `add`, in the order in which a forward pass reads its units, then `allocate`d; passes run once ranks are
    `connect`ed. accompany: has the other ranks run one empty forward pass, beside one that this rank alone was asked for."""

    def __init__(self, rank: int, world: int, device: torch.device) -> None:
        self.rank, self.world, self.device = rank, world, device
        self.collectives: RankCollectives | None = None
        self.accompany: Callable[[], None] = _nobody
        self.busy_since: float | None = None  # time.monotonic() of the last sign of life within passes; None between them
        self._memory = GatherMemory(rank, world, device)
        self._units: dict[str, _Unit] = {}
        self._order: list[str] = []
        self._buffers: list[Tensor] = []
        self._holds: list[str | None] = [None, None]  # the unit that each buffer has, or is about to
        self._landing: list[Finish | None] = [None, None]
        self._last: tuple[int, Direction] | None = None  # place in the order, and direction, of the unit that was last used
        self._expected: int | None = None  # passes that `together` waits for still

    # ---- loading -----------------------------------------------------------------------------------------------------

    def add(self, unit: str, tensors: Sequence[Tensor], read: Callable[[Tensor, int, Sequence[int]], None]) -> None:
        """Keep this rank's part of a unit. tensors: that store it; only their shapes and dtypes are looked at. read: writes the
        unit's bytes to a tensor, uint8 [n] of zeros, from a first byte on, given where in the unit each tensor starts."""
        places, end = [], 0
        for tensor in tensors:
            places.append((end, tensor.shape, tensor.dtype))
            end += -(-tensor.nbytes // ALIGNMENT) * ALIGNMENT
        size = -(-end // (self.world * ALIGNMENT)) * ALIGNMENT
        with self._memory.allocating():
            part = torch.zeros(size, dtype=torch.uint8, device=self.device)
        read(part, self.rank * size, [start for start, _, _ in places])
        self._units[unit] = _Unit(tuple(places), part)
        self._order.append(unit)

    def allocate(self) -> None:
        """Make the buffers, once all units are there."""
        most = max(unit.part.nbytes for unit in self._units.values()) * self.world
        count = min(2, len(self._order))
        with self._memory.allocating():
            self._buffers = [torch.zeros(most, dtype=torch.uint8, device=self.device) for _ in range(count)]

    def connect(self, collectives: RankCollectives) -> None:
        """Join the other ranks, which come too. Until these collectives are closed or shared with others, they keep the memory
        of the shards."""
        collectives.share(self._memory)
        self.collectives = collectives

    def views(self, unit: str) -> list[Tensor]:
        """The unit's tensors in its buffer, whatever that holds now."""
        buffer = self._buffers[self._place(unit)]
        return [
            buffer[start : start + math.prod(shape) * dtype.itemsize].view(dtype).view(shape)
            for start, shape, dtype in self._units[unit].places
        ]

    def tensors(self) -> Iterator[Tensor]:
        """Every tensor that is held."""
        yield from self._buffers
        yield from (unit.part for unit in self._units.values())

    # ---- passes ------------------------------------------------------------------------------------------------------

    def use(self, unit: str, direction: Direction) -> None:
        sharded = unit in self._units
        if sharded:
            self._begin(unit)
            self._finish(self._place(unit))
            self._last = self._order.index(unit), direction
        if self._last is None or self._last[1] != direction:
            return  # resident layers before the first sharded one: both buffers hold what is read next
        # while a resident layer computes, the buffer of the unit before it takes the one after the next
        for ahead in (1,) if sharded else (1, 2):
            following = self._last[0] + ahead * direction
            if 0 <= following < len(self._order):
                self._begin(self._order[following])

    def use_in_backward(self, x_TK: Tensor, unit: str) -> Tensor:
        if not torch.is_grad_enabled():
            return x_TK
        used: Tensor = _UseInBackward.apply(x_TK, self, unit)
        return used

    @contextmanager
    def one_pass(self, backward: bool) -> Iterator[None]:
        """Raises GatherFailed where the ranks did not agree on it."""
        alone, self.busy_since = self._expected is None, time.monotonic()
        if self._expected is None:
            if backward:
                raise GatherFailed("a training pass that the other ranks do not run")
            self.accompany()
        elif not self._expected:
            raise GatherFailed("more passes than the ranks agreed on")
        else:
            self._expected -= 1
        try:
            yield
        finally:
            if alone:
                self.busy_since = None

    def run_empty_pass(self, backward: bool) -> None:
        """The gathers of a pass, and nothing else."""
        for unit in self._order:
            self.use(unit, FORWARD)
        for unit in reversed(self._order) if backward else ():
            if unit not in (EMBEDDING_UNIT, HEAD_UNIT):
                self.use(unit, BACKWARD)

    @contextmanager
    def together(self, own: int, backward: bool, on_progress: Callable[[], None]) -> Iterator[None]:
        """Raises GatherFailed where a rank does not come."""
        assert self.collectives is not None, "ranks are connected before they run"
        self.busy_since = time.monotonic()
        self._expected = self.collectives.most(own)
        try:
            yield
            while self._expected:
                with self.one_pass(backward):
                    self.run_empty_pass(backward)
                on_progress()
            # a backward has prefetched the embedding: a rank that is ahead could unmap the others' memory while it writes there
            for place in range(len(self._buffers)):
                self._finish(place)
        finally:
            self._expected = self.busy_since = None

    def _place(self, unit: str) -> int:
        return self._order.index(unit) % 2

    def _begin(self, unit: str) -> None:
        place = self._place(unit)
        if self._holds[place] == unit:
            return
        assert self.collectives is not None, "ranks are connected before they run"
        self._finish(place)  # of a unit that was prefetched and not read
        self._holds[place], part = unit, self._units[unit].part
        self._landing[place] = self.collectives.gather(self._buffers[place][: part.nbytes * self.world], part)

    def _finish(self, place: int) -> None:
        landing, self._landing[place] = self._landing[place], None
        if landing is not None:
            landing()


class _UseInBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_TK: Tensor, shards: WeightShards, unit: str) -> Tensor:
        ctx.shards, ctx.unit = shards, unit
        return x_TK.view_as(x_TK)

    @staticmethod
    def backward(ctx: Any, dx_TK: Tensor) -> tuple[Tensor, None, None]:
        ctx.shards.use(ctx.unit, BACKWARD)
        return dx_TK, None, None


def _nobody() -> None:
    raise GatherFailed("a pass that the other ranks do not run")
