"""Reads safetensors files by system calls. Knows no jobs.

The library maps a file, and a mapped page that cannot be read ends the process by SIGBUS. Here that is an OSError, and a file
that is damaged or cut short a ValueError.
"""

import os
from collections.abc import Callable
from io import FileIO
from math import prod
from pathlib import Path

import torch
from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, ValidationError
from torch import Tensor

_DTYPES = {
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


class _Entry(BaseModel):
    dtype: str
    shape: tuple[NonNegativeInt, ...]
    data_offsets: tuple[NonNegativeInt, NonNegativeInt]


class _Header(BaseModel):
    """`tensors` besides the metadata, by name."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, _Entry] = Field(init=False)

    metadata: dict[str, str] = Field(default={}, alias="__metadata__")

    @property
    def tensors(self) -> dict[str, _Entry]:
        return self.__pydantic_extra__


def read_metadata(path: Path) -> dict[str, str]:
    with FileIO(path) as io:
        return _header(io)[0].metadata


def read_tensors(path: Path, wanted: Callable[[str], bool]) -> dict[str, Tensor]:
    """The tensors whose names are wanted, one by one: no other copy of them is made."""
    with FileIO(path) as io:
        header, begin = _header(io)
        most, found = os.fstat(io.fileno()).st_size - begin, dict[str, Tensor]()
        for name, entry in header.tensors.items():
            first, stop = entry.data_offsets
            if (dtype := _DTYPES.get(entry.dtype)) is None:
                raise ValueError(f"{name} is of type {entry.dtype}; read are {', '.join(_DTYPES)}")
            if stop > most or stop - first != prod(entry.shape) * dtype.itemsize:
                raise ValueError(f"it ends at byte {begin + most}, or the place of {name} is damaged: {first} to {stop}")
            if wanted(name):
                io.seek(begin + first)
                found[name] = torch.empty(entry.shape, dtype=dtype)
                read_into(io, found[name])
    return found


def read_into(io: FileIO, tensor: Tensor) -> None:
    """Fill it with what comes next."""
    _fill(io, tensor.view(-1).view(torch.uint8).numpy().data)


def _fill(io: FileIO, left: memoryview) -> None:
    while left:
        read = io.readinto(left)
        if not read:
            raise ValueError(f"it ends {len(left)} bytes early")
        left = left[read:]


def _header(io: FileIO) -> tuple[_Header, int]:
    """And the byte where tensors begin."""
    before, size = bytearray(_LENGTH), os.fstat(io.fileno()).st_size
    _fill(io, memoryview(before))
    if (begin := _LENGTH + int.from_bytes(before, "little")) > size:
        raise ValueError(f"it ends at byte {size}, before its tensors, or its header is damaged")
    header = bytearray(begin - _LENGTH)
    _fill(io, memoryview(header))
    try:
        return _Header.model_validate_json(header), begin
    except ValidationError:
        raise ValueError("its header is damaged") from None
