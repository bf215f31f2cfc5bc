"""Arena: one flat buffer that holds every adapter on a backbone, one row per rank. Knows no jobs, no steps and no learning.

Attach and detach allocate and free rows without moving other adapters; a checkpoint or an eviction copies one slice. `compact`
and `shrink` move adapters down over free rows, only between steps; no bit of a result depends on where an adapter lies.
Row-major, W columns a row (arena_layout.py): `master` and `grad` are float32 [rows, W], `moments` lie beside them (moments.py).
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from worker.model.arena_layout import Layout, Target
from worker.model.moments import EightBitMoments, Moments, PlainMoments
from worker.model.out_of_memory import is_out_of_memory

ROW_MULTIPLE = 8  # storage of a rank is rounded up to this; the rows beyond the rank stay zero


class ArenaFullError(Exception):
    """No run of free rows is long enough; the caller may grow the arena or wait."""


class SlotOwnershipError(RuntimeError):
    """A slot's rows are not those that it was given. Nothing may be read from them or written to them on its behalf."""


@dataclass(eq=False)
class Slot:
    """An adapter's place: `rows` arena rows from `row`, of which the first `rank` are its own. `scale` is alpha / rank.

    The arena alone changes `row`, when it compacts. slot_id: a number that the rows carry too, wherever they move."""

    row: int
    rows: int
    rank: int
    scale: float
    slot_id: int = 0

    @property
    def used(self) -> slice:
        """The arena rows that hold the adapter."""
        return slice(self.row, self.row + self.rank)

    @property
    def stored(self) -> slice:
        """The arena rows allocated to the adapter."""
        return slice(self.row, self.row + self.rows)


@dataclass(frozen=True)
class AdapterState:
    """Host copies of an adapter's rows, float32 [rank, W]. Moments are None where only the weights were asked for."""

    weights: Tensor
    exp_avg: Tensor | None = None
    exp_avg_sq: Tensor | None = None


def rows_for(rank: int) -> int:
    """How many arena rows an adapter of this rank takes."""
    return -(-rank // ROW_MULTIPLE) * ROW_MULTIPLE


HostMemory = Callable[[torch.Size, torch.dtype], Tensor]  # makes tensors on the host, their content undefined


def host_tensor(shape: torch.Size, dtype: torch.dtype, pinned: bool) -> Tensor:
    """On the host, its content undefined. pinned: in memory that a GPU copies from and to several times as fast, unless the
    host has none left."""
    try:
        return torch.empty(shape, dtype=dtype, pin_memory=pinned)
    except RuntimeError as error:
        if not pinned or not is_out_of_memory(error):
            raise
        return torch.empty(shape, dtype=dtype)


def _enlarged(buffer: Tensor, rows: int) -> Tensor:
    new = buffer.new_zeros(rows, *buffer.shape[1:])
    new[: buffer.shape[0]] = buffer
    return new


def _first_rows(buffer: Tensor, rows: int) -> Tensor:
    """The first rows as a copy, so that the rest is freed; a view where there is no memory for a copy."""
    try:
        return buffer[:rows].clone()
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        return buffer[:rows]


class Arena:
    _names: tuple[str, ...] = ("master", "grad")  # attributes that are buffers; `moments` lists its own

    def __init__(
        self,
        targets: Iterable[Target],
        rows: int,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        eight_bit: bool = False,
    ) -> None:
        """eight_bit: keep the moments as 8-bit codes."""
        self.layout = Layout(targets)
        self.master = torch.zeros(rows, self.layout.width, device=device, dtype=dtype)
        self.grad = torch.zeros_like(self.master)
        width, layers = self.layout.width, len(self.layout.layers)
        if eight_bit and width % layers:
            raise ValueError(f"layers of different shapes share a row of {width} columns; 8-bit moments need them equal")
        self.moments: Moments = (
            EightBitMoments(rows, layers, width // layers, device) if eight_bit else PlainMoments(rows, width, device, dtype)
        )
        self.row_slot_ids = torch.zeros(rows, 1, dtype=torch.int64)  # on the host: each row's slot_id; 0 where it is free
        self.host_memory: HostMemory | None = None  # for snapshots; None: of this process alone
        self._last_slot_id = 0  # given so far
        self._slots: list[Slot] = []  # in row order

    @property
    def rows(self) -> int:
        return self.master.shape[0]

    @property
    def slots(self) -> tuple[Slot, ...]:
        """Every attached adapter's place, in row order."""
        return tuple(self._slots)

    @property
    def rows_used(self) -> int:
        return sum(slot.rows for slot in self._slots)

    @property
    def bytes_per_row(self) -> int:
        """Memory of one row in all buffers."""
        return 2 * self.layout.width * self.master.element_size() + self.moments.bytes_per_row

    def attach(self, rank: int, alpha: float) -> Slot:
        """Take the first run of free rows that holds `rank`; the adapter is zero. Raises ArenaFullError."""
        if rank < 1:
            raise ValueError(f"rank is {rank}; an adapter has at least rank 1")
        rows, start = rows_for(rank), 0
        for place, slot in enumerate([*self._slots, None]):
            end = slot.row if slot is not None else self.rows
            if end - start >= rows:
                self._last_slot_id += 1
                taken = Slot(start, rows, rank, alpha / rank, self._last_slot_id)
                self.row_slot_ids[taken.stored] = taken.slot_id
                self._slots.insert(place, taken)
                return taken
            start = slot.row + slot.rows if slot is not None else end
        raise ArenaFullError(
            f"an adapter of rank {rank} needs {rows} contiguous rows; {self.rows - self.rows_used} of {self.rows} are free"
        )

    def fits(self, rank: int) -> bool:
        """Whether `attach` would find room."""
        edges = [(slot.row, slot.row + slot.rows) for slot in self._slots] + [(self.rows, self.rows)]
        starts = [0] + [stop for _, stop in edges]
        return any(edge[0] - start >= rows_for(rank) for start, edge in zip(starts, edges, strict=False))

    def detach(self, slot: Slot) -> None:
        """Free the rows, zeroed in all buffers, so that nothing reaches the next owner."""
        self._own(slot)
        for buffer in (self.master, self.grad):
            buffer[slot.stored].zero_()
        self.moments.zero(slot.stored)
        self.row_slot_ids[slot.stored].zero_()
        self._slots.remove(slot)

    def grow(self, rows: int) -> None:
        """Enlarge to `rows`; slots keep their places and contents. If memory runs out, the arena stays as it was, and what some
        buffers had got is freed."""
        before = self.rows
        if rows < before:
            raise ValueError(f"the arena has {before} rows and cannot grow to {rows}")
        try:
            self._replace(lambda buffer: _enlarged(buffer, rows))
        except (RuntimeError, MemoryError):
            self._replace(lambda buffer: _first_rows(buffer, before) if len(buffer) > before else buffer)
            raise

    def compact(self) -> None:
        """Move adapters down over the free rows before them, so that all free rows lie behind the last adapter. Allocates
        nothing: slots are multiples of eight rows, so a block of eight never overlaps its destination."""
        end = 0
        for slot in self._slots:
            if slot.row > end:
                for at in range(0, slot.rows, ROW_MULTIPLE):
                    self._move(slot.row + at, end + at)
                slot.row = end
            end += slot.rows

    def shrink(self, spare: int = 0) -> int:
        """Where more than `spare` rows are free: compact, and free the others. Returns how many there were."""
        kept = max(ROW_MULTIPLE, self.rows_used + spare)
        given = max(0, self.rows - kept)
        if given:
            self.compact()
            self._replace(lambda buffer: _first_rows(buffer, kept))
        return given

    def _move(self, row: int, to: int) -> None:
        """Move ROW_MULTIPLE rows of every buffer, and zero their old place."""

        def moved(buffer: Tensor) -> Tensor:
            buffer[to : to + ROW_MULTIPLE] = buffer[row : row + ROW_MULTIPLE]
            buffer[row : row + ROW_MULTIPLE].zero_()
            return buffer

        self._replace(moved)

    def _replace(self, change: Callable[[Tensor], Tensor]) -> None:
        """Replace each buffer by `change(buffer)`, one after another, so that only one exists twice at a time."""
        for name in self._names:
            setattr(self, name, change(getattr(self, name)))
        self.row_slot_ids = change(self.row_slot_ids)
        buffers = self.moments.buffers
        for place, buffer in enumerate(buffers):
            buffers[place] = change(buffer)

    def snapshot(self, slot: Slot, moments: bool = True) -> AdapterState:
        """Copy an adapter to the host."""
        self._own(slot)
        parts = [self.master[slot.used], *(self.moments.read(slot.used) if moments else ())]
        return AdapterState(*(self._host_like(part).copy_(part) for part in parts))

    def begin_snapshot(self, slot: Slot) -> Callable[[], Tensor]:
        """Copy an adapter's weights, as they are now, to the host, float32 [rank, W]. What is returned waits for the copy; call
        it before its memory is used again."""
        weights = self.snapshot(slot, moments=False).weights
        return lambda: weights

    def _host_like(self, tensor: Tensor) -> Tensor:
        """Host memory for a copy: `host_memory`, or else pinned, if the tensor is on a GPU."""
        if self.host_memory is not None:
            return self.host_memory(tensor.shape, tensor.dtype)
        return host_tensor(tensor.shape, tensor.dtype, tensor.is_cuda)

    def restore(self, slot: Slot, state: AdapterState) -> None:
        """Write a snapshot back into a slot of the same rank. Without moments they start at zero; the gradient always does."""
        self._own(slot)
        shape = (slot.rank, self.layout.width)
        if tuple(state.weights.shape) != shape:
            raise ValueError(f"the state has shape {tuple(state.weights.shape)}, the slot {shape}")
        self.master[slot.used] = state.weights.to(self.master.device)
        self.grad[slot.stored].zero_()
        if state.exp_avg is None or state.exp_avg_sq is None:
            self.moments.zero(slot.stored)
        else:
            self.moments.restore(slot.used, state.exp_avg, state.exp_avg_sq)

    def weights(self, slot: Slot) -> dict[str, tuple[Tensor, Tensor]]:
        """Views of the live adapter: {target name: (A [r, in], B [out, r])}."""
        self._own(slot)
        return self.layout.split(self.master[slot.used])

    def _own(self, slot: Slot) -> None:
        if slot not in self._slots:
            raise ValueError(f"the slot at row {slot.row} is not attached to this arena")
        if not (self.row_slot_ids[slot.stored] == slot.slot_id).all():
            raise SlotOwnershipError(f"rows {slot.row} to {slot.row + slot.rows - 1} of the arena are not all of one slot")
