"""The optimizer's moments of every arena row: in full precision, or as 8-bit codes. Knows rows; knows no adapters."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from grouped_lora.optimizer.blockwise_8bit import BLOCK, decode, encode, encode_again
from torch import Tensor


class Moments(ABC):
    """`buffers`: all state, each buffer with one row for each row of the arena."""

    buffers: list[Tensor]

    @property
    def bytes_per_row(self) -> int:
        return sum(buffer.stride(0) * buffer.element_size() for buffer in self.buffers)

    def zero(self, rows: slice) -> None:
        for buffer in self.buffers:
            buffer[rows].zero_()

    @abstractmethod
    def read(self, rows: slice) -> tuple[Tensor, Tensor]:
        """Both moments of these rows, [rows, W]; perhaps views of the buffers, so that writing to them changes the state."""

    @abstractmethod
    def write(self, rows: slice, exp_avg: Tensor, exp_avg_sq: Tensor) -> None:
        """Store the moments that the optimizer computed from those read."""

    @abstractmethod
    def restore(self, rows: slice, exp_avg: Tensor, exp_avg_sq: Tensor) -> None:
        """Store moments of an earlier `read`, from any device."""


class PlainMoments(Moments):
    """Both moments in the arena's own precision."""

    def __init__(self, rows: int, width: int, device: torch.device | str, dtype: torch.dtype) -> None:
        self.buffers = [torch.zeros(rows, width, device=device, dtype=dtype) for _ in range(2)]

    def read(self, rows: slice) -> tuple[Tensor, Tensor]:
        return self.buffers[0][rows], self.buffers[1][rows]

    def write(self, rows: slice, exp_avg: Tensor, exp_avg_sq: Tensor) -> None:
        for buffer, values in zip(self.buffers, (exp_avg, exp_avg_sq), strict=True):
            if values.data_ptr() != buffer[rows].data_ptr():
                buffer[rows] = values

    def restore(self, rows: slice, exp_avg: Tensor, exp_avg_sq: Tensor) -> None:
        for buffer, values in zip(self.buffers, (exp_avg, exp_avg_sq), strict=True):
            buffer[rows] = values.to(buffer.device)


class EightBitMoments(Moments):
    """8-bit codes [rows, layers, columns] and the scales of their blocks [rows, layers, blocks] fp32: a quarter of fp32's size.

    A block is 256 columns of one layer's part of one row, so that no adapter's numbers depend on another's. Reading gives fp32,
    which restores to the same codes.
    """

    def __init__(self, rows: int, layers: int, columns: int, device: torch.device | str) -> None:
        blocks = -(-columns // BLOCK)
        codes = [torch.zeros(rows, layers, columns, device=device, dtype=torch.uint8) for _ in range(2)]
        scales = [torch.zeros(rows, layers, blocks, device=device) for _ in range(2)]
        self.buffers = [*codes, *scales]

    def read(self, rows: slice) -> tuple[Tensor, Tensor]:
        m, v, m_scales, v_scales = (buffer[rows].flatten(0, 1) for buffer in self.buffers)
        layers = self.buffers[0].shape[1]
        wide = (-1, layers * self.buffers[0].shape[2])
        return decode(m, m_scales, True).view(wide), decode(v, v_scales, False).view(wide)

    def write(self, rows: slice, exp_avg: Tensor, exp_avg_sq: Tensor) -> None:
        self._put(rows, [encode(self._layered(exp_avg), True), encode(self._layered(exp_avg_sq), False)])

    def restore(self, rows: slice, exp_avg: Tensor, exp_avg_sq: Tensor) -> None:
        both = [self._layered(exp_avg), self._layered(exp_avg_sq)]
        self._put(rows, [encode_again(both[0], True), encode_again(both[1], False)])

    def _layered(self, values: Tensor) -> Tensor:
        return values.to(self.buffers[0].device).reshape(-1, self.buffers[0].shape[2])

    def _put(self, rows: slice, coded: Sequence[tuple[Tensor, Tensor]]) -> None:
        for place, (codes, scales) in enumerate(coded):
            for buffer, values in ((self.buffers[place], codes), (self.buffers[2 + place], scales)):
                buffer[rows] = values.view(-1, *buffer.shape[1:])
