"""The fields of a batch in one int32 buffer, which is uploaded at once. Its layout follows from shapes. Knows no batch."""

from collections.abc import Mapping, Sequence
from typing import TypeVar

import numpy as np
import torch
from grouped_lora.work_table import BLOCK_COLUMNS, SPAN_COLUMNS, ClassSize, HostTable, WorkTable
from numpy.typing import NDArray
from torch import Tensor

_ALIGN = 4  # int32 numbers: every field starts on 16 bytes

Buffer = TypeVar("Buffer", NDArray[np.int32], Tensor)


def pinned(values: NDArray[np.generic], device: torch.device) -> Tensor:
    """On the host, and for a GPU in pinned memory: a copy from there waits for nothing."""
    host = torch.from_numpy(values)
    return host.pin_memory() if device.type == "cuda" else host


def upload(values: NDArray[np.generic], device: torch.device) -> Tensor:
    """On its way to the device."""
    return pinned(values, device).to(device, non_blocking=True)


class UploadLayout:
    """Where each field lies in the buffer: its shape by its name, in order. Floats are stored as their bits."""

    def __init__(self, fields: Mapping[str, tuple[int, ...]], classes: Sequence[ClassSize]) -> None:
        """fields: besides those of the work table, whose rank classes are `classes`."""
        self._classes = tuple(classes)
        spans, blocks = sum(size.spans for size in classes), sum(size.blocks for size in classes)
        table = {"spans": (spans, SPAN_COLUMNS), "scales": (spans,), "blocks": (blocks, BLOCK_COLUMNS)}
        self._places: dict[str, tuple[slice, tuple[int, ...]]] = {}
        self._length = 0
        for name, shape in (dict(fields) | table).items():
            count = int(np.prod(shape))
            self._places[name] = slice(self._length, self._length + count), shape
            self._length += -(-count // _ALIGN) * _ALIGN

    def empty(self) -> NDArray[np.int32]:
        """A buffer of zeros on the host."""
        return np.zeros(self._length, np.int32)

    def field(self, buffer: Buffer, name: str) -> Buffer:
        """A view of a field, as int32."""
        where, shape = self._places[name]
        return buffer[where].reshape(shape)

    def put(self, buffer: NDArray[np.int32], name: str, values: NDArray[np.generic]) -> None:
        """Write the field's first numbers."""
        raw = values.astype(np.float32).view(np.int32) if values.dtype.kind == "f" else values.astype(np.int32)
        start = self._places[name][0].start
        buffer[start : start + raw.size] = raw.ravel()

    def put_table(self, buffer: NDArray[np.int32], table: HostTable) -> None:
        for name, values in (("spans", table.spans), ("scales", table.scales), ("blocks", table.blocks)):
            self.put(buffer, name, values)

    def table(self, buffer: Tensor, keys: Tensor | None = None) -> WorkTable:
        """The work table of an uploaded buffer. keys: see WorkTable."""
        spans, scales, blocks = (self.field(buffer, name) for name in ("spans", "scales", "blocks"))
        return WorkTable(spans, scales.view(torch.float32), blocks, self._classes, keys)
