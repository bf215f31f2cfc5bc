"""The arena on a GPU: the same rows, with a bf16 copy that products read. Knows when the copy is stale; knows no steps.

Row-major on the GPU too, although per-layer slabs made a step 1.3 % faster (74.7 against 75.7 ms on an H100): with slabs every
snapshot would be one copy per layer (docs/NUMERICS.md).
"""

from collections.abc import Callable, Iterable
from weakref import WeakSet

import torch
from grouped_lora.gradient import COLUMNS, ROWS, WIDEST, Gradient
from torch import Tensor

from worker.model.arena import AdapterState, Arena, Slot
from worker.model.arena_layout import Target


class DeviceArena(Arena):
    """`compute_copy`: the weights in the dtype that products read, [rows, W]. `squares`: the sums of squares of the gradient's
    tiles, of which each ROWS rows hold one adapter's, so that they move with it. Both are stale of a slot that is not in
    `slots_with_gradient`: the first pass of a step overwrites them, later ones add (the work table's column `accumulate`)."""

    _names = ("master", "grad", "compute_copy", "squares")

    def __init__(
        self, targets: Iterable[Target], rows: int, device: torch.device | str, dtype: torch.dtype, eight_bit: bool = False
    ) -> None:
        super().__init__(targets, rows, device, eight_bit=eight_bit)
        if self.layout.width > WIDEST:
            raise ValueError(f"adapters of this base have {self.layout.width} numbers a rank; kernels address {WIDEST} at most")
        self.compute_copy = torch.zeros(self.master.shape, device=device, dtype=dtype)
        self.squares = torch.zeros(rows, -(-self.layout.width // (COLUMNS * ROWS)), device=device)
        self.slots_with_gradient: WeakSet[Slot] = WeakSet()
        self._fresh: WeakSet[Slot] = WeakSet()
        self._copying = torch.cuda.Stream(device) if self.master.is_cuda else None
        self._copied: torch.cuda.Event | None = None  # once all snapshots begun so far are through; None: nobody need wait

    @property
    def bytes_per_row(self) -> int:
        return super().bytes_per_row + self.layout.width * self.compute_copy.element_size() + self.squares.shape[1] * 4

    def layered(self, buffer: Tensor) -> Tensor:
        """A view [layers, rows, C] of a buffer of the arena or of its moments."""
        layers = len(self.layout.layers)
        return buffer.view(buffer.shape[0], layers, -1).transpose(0, 1)

    @property
    def gradient(self) -> Gradient:
        """The gradient of all layers, and its sums of squares."""
        layers, groups, places = len(self.layout.layers), self.rows // ROWS, self.layout.width // COLUMNS
        squares = self.squares[: groups * ROWS].view(groups, ROWS * self.squares.shape[1])[:, :places]
        return Gradient(self.layered(self.grad), squares.unflatten(1, (layers, -1)).transpose(0, 1))

    def clear_gradient(self, slot: Slot) -> None:
        self.grad[slot.used].zero_()
        self.squares[slot.stored].zero_()

    def refresh(self, slots: Iterable[Slot]) -> None:
        """Update the compute copy of slots whose weights something other than the optimizer wrote."""
        for slot in slots:
            if slot not in self._fresh:
                self.compute_copy[slot.stored] = self.master[slot.stored].to(self.compute_copy.dtype)
                self._fresh.add(slot)

    def touched(self, slot: Slot) -> None:
        """Mark the slot's compute copy as stale and its gradient as void, after its master weights changed."""
        self._fresh.discard(slot)
        self.slots_with_gradient.discard(slot)

    def begin_snapshot(self, slot: Slot) -> Callable[[], Tensor]:
        """On a stream of its own: passes, which read the weights too, run beside it."""
        if self._copying is None:
            return super().begin_snapshot(slot)
        self._own(slot)
        weights = self.master[slot.used]
        found, done = self._host_like(weights), torch.cuda.Event()
        self._copying.wait_stream(torch.cuda.current_stream(weights.device))
        with torch.cuda.stream(self._copying):
            found.copy_(weights, non_blocking=True)
            done.record()
        self._copied = done

        def read() -> Tensor:
            done.synchronize()
            return found

        return read

    def await_snapshots(self) -> None:
        """Have the current stream wait for the snapshots under way: call before master weights change or move."""
        if self._copied is not None:
            torch.cuda.current_stream(self.master.device).wait_event(self._copied)
            self._copied = None

    def restore(self, slot: Slot, state: AdapterState) -> None:
        self.await_snapshots()
        super().restore(slot, state)
        self.touched(slot)

    def _replace(self, change: Callable[[Tensor], Tensor]) -> None:
        self.await_snapshots()
        super()._replace(change)

    def detach(self, slot: Slot) -> None:
        self.await_snapshots()
        super().detach(slot)
        self.compute_copy[slot.stored].zero_()
        self.squares[slot.stored].zero_()
        self.touched(slot)
