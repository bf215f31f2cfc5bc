"""Reads safetensors files by system calls. Knows no jobs and no bases.

The library maps a file, and a mapped page that cannot be read ends the process by SIGBUS. Here that is an OSError, and a file
that is damaged or cut short a ValueError.
"""

import os
import weakref
from collections.abc import Callable
from math import prod
from pathlib import Path

import torch
from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, ValidationError
from torch import Tensor

from worker.model.arena import host_tensor

DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U64": torch.uint64,
    "U32": torch.uint32,
    "U16": torch.uint16,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
_LENGTH = 8  # bytes before a header, which say how long it is
_MOST_HEADER = 100_000_000  # bytes of a header, as the library takes


class StoredTensor(BaseModel):
    """What a header says of a tensor. data_offsets: bytes [first, stop) behind the header."""

    dtype: str
    shape: tuple[NonNegativeInt, ...]
    data_offsets: tuple[NonNegativeInt, NonNegativeInt]


class _Header(BaseModel):
    """`tensors` besides the metadata, by name."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, StoredTensor] = Field(init=False)

    metadata: dict[str, str] | None = Field(default=None, alias="__metadata__")

    @property
    def tensors(self) -> dict[str, StoredTensor]:
        return self.__pydantic_extra__


class TensorFile:
    """A file that is open as long as this object lives, so that one that takes its name changes nothing. Any thread reads."""

    def __init__(self, path: Path) -> None:
        """Read the header. Raises OSError and ValueError."""
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        weakref.finalize(self, os.close, self._descriptor)
        self._size = os.fstat(self._descriptor).st_size
        header, self._begin = self._header()
        self.metadata, self.tensors = header.metadata or {}, header.tensors

    def check(self) -> None:
        """Raises ValueError where a tensor is of an unknown type, where the file cannot hold it, or where there is a gap before
        it, or another tensor in its place: so is what was written by mistake."""
        end = 0
        for name, one in sorted(self.tensors.items(), key=lambda item: item[1].data_offsets):
            first, stop = one.data_offsets
            if one.dtype not in DTYPES:
                raise ValueError(f"{name} is of type {one.dtype}; read are {', '.join(DTYPES)}")
            if self._begin + stop > self._size:
                raise ValueError(
                    f"it is cut short after {self._size} bytes: {name} should end at byte {self._begin + stop}, "
                    "or its header is damaged"
                )
            if stop - first != prod(one.shape) * DTYPES[one.dtype].itemsize:
                raise ValueError(f"the place of {name} is damaged: {first} to {stop}")
            if first != end:
                raise ValueError(f"{name} begins at byte {first} of the tensors, of which those before it end at {end}")
            end = stop
        if self._begin + end != self._size:
            raise ValueError(f"{self._size - self._begin - end} bytes stand behind its tensors")

    def read(self, name: str, rows: slice = slice(None), pinned: bool = False) -> Tensor:
        """These rows of a tensor, of which no others are read; of one without dimensions all. In memory of their own, pinned as
        host_tensor does it. Raises OSError and ValueError."""
        one = self.tensors[name]
        shape, first = one.shape, one.data_offsets[0]
        if shape:
            begin, stop, _ = rows.indices(shape[0])
            first += begin * prod(shape[1:]) * DTYPES[one.dtype].itemsize
            shape = (max(0, stop - begin), *shape[1:])
        found = host_tensor(torch.Size(shape), DTYPES[one.dtype], pinned)
        read_into(self._descriptor, found, self._begin + first)
        return found

    def _header(self) -> tuple[_Header, int]:
        """And the byte where tensors begin."""
        before = bytearray(_LENGTH)
        _fill(self._descriptor, memoryview(before), 0)
        length = int.from_bytes(before, "little")
        if _LENGTH + length > self._size or length > _MOST_HEADER:
            raise ValueError(f"it ends at byte {self._size}, before its tensors, or its header is damaged")
        header = bytearray(length)
        _fill(self._descriptor, memoryview(header), _LENGTH)
        try:
            return _Header.model_validate_json(header), _LENGTH + length
        except ValidationError:
            raise ValueError("its header is damaged") from None


def read_metadata(path: Path) -> dict[str, str]:
    return TensorFile(path).metadata


def read_tensors(path: Path, wanted: Callable[[str], bool]) -> dict[str, Tensor]:
    """The tensors whose names are wanted, one by one: no other copy of them is made."""
    file = TensorFile(path)
    file.check()
    return {name: file.read(name) for name in file.tensors if wanted(name)}


def read_into(descriptor: int, tensor: Tensor, place: int) -> None:
    """Fill it with what an open file holds from byte `place` on. Raises OSError, and ValueError where the file ends before."""
    _fill(descriptor, tensor.view(-1).view(torch.uint8).numpy().data, place)


def _fill(descriptor: int, left: memoryview, place: int) -> None:
    while left:
        read = os.preadv(descriptor, [left], place)
        if not read:
            raise ValueError(f"it ends {len(left)} bytes early")
        left, place = left[read:], place + read
