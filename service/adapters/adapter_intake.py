"""Adapter intake: streams an adapter_model.safetensors into storage while checking it; memory holds its header and one block.

Format: 8 bytes with the header's length, the header (JSON: name -> dtype, shape, data_offsets), the tensors without gaps.
Knows storage and tensors' names. Knows no HTTP and no tenants.
"""

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from contract.messages.peft_settings import WEIGHTS_FILE, PeftSettings
from contract.values.strict_json import read_strictly
from service.adapters.matrix_shapes import MatrixShapes
from service.http.problems import FieldError, Invalid, TooLarge, invalid_field, shown
from service.storage.object_store import Incoming, Stored

MAX_HEADER = 2 * 2**20  # bytes; 1,764 tensors of a base with 126 layers take 0.3 MB
_MAX_SIZE = 2**31 - 1  # numbers of a matrix' side
_LENGTH = 8  # bytes before the header
_PREFIX = "base_model.model."
_MOST_ERRORS = 100


@dataclass(frozen=True)
class _Number:
    """How numbers of a dtype lie in memory: those whose exponent is all ones are infinite or NaN."""

    words: str
    exponent: int

    @property
    def bytes(self) -> int:
        return np.dtype(self.words).itemsize


_NUMBERS = {"F32": _Number("<u4", 0x7F800000), "F16": _Number("<u2", 0x7C00), "BF16": _Number("<u2", 0x7F80)}


class AdapterInvalid(Invalid):
    """The upload is no adapter for its base. `errors` lists the first 100 mistakes; `error_count` is the total."""

    code, title = "adapter_invalid", "The files are not an adapter for this base"


class AdapterTooLarge(TooLarge):
    code = "adapter_too_large"

    @classmethod
    def bytes(cls, limit: int) -> "AdapterTooLarge":
        way_out = "save it in bfloat16 or float16, half of float32's size, or ask for a larger MOTET_MAX_ADAPTER_BYTES"
        return cls(f"An adapter's {WEIGHTS_FILE} may have at most {limit} bytes; {way_out}.", limit=limit)


@dataclass(frozen=True)
class Tensor:
    """One tensor of the header. end: the offset of its last byte plus one, in the data."""

    name: str
    dtype: str
    shape: tuple[int, int]
    end: int


class AdapterIntake:
    """One upload. `abandon` removes it unless `finish` succeeded."""

    wanted = f"the adapter's {WEIGHTS_FILE}"
    usual_name = WEIGHTS_FILE

    def __init__(self, incoming: Incoming, limit: int) -> None:
        self._incoming, self._limit = incoming, limit
        self._bytes = 0
        self._header: bytearray | None = bytearray()  # None: read
        self._tensors: tuple[Tensor, ...] = ()
        self._place, self._data, self._rest = 0, 0, b""  # the current tensor, bytes checked, a number's first bytes

    def feed(self, block: bytes) -> None:
        """Write and check the next bytes. Raises AdapterTooLarge or Invalid."""
        self._bytes += len(block)
        if self._bytes > self._limit:
            raise AdapterTooLarge.bytes(self._limit)
        self._incoming.write(block)
        if self._header is None:
            self._check_finite(block)
            return
        self._header += block
        length = self._header_bytes()
        if length is not None and len(self._header) >= _LENGTH + length:
            data = bytes(self._header[_LENGTH + length :])
            self._tensors = _tensors(bytes(self._header[_LENGTH : _LENGTH + length]))
            self._header = None
            self._check_finite(data)

    def tensors(self) -> tuple[Tensor, ...]:
        """What the complete file holds. Raises Invalid where it is cut off."""
        said = self._tensors[-1].end if self._tensors else 0
        if self._header is not None or self._data != said or self._rest:
            raise invalid_field("file", "damaged", f"is no whole {WEIGHTS_FILE}: it ends before its header says so")
        return self._tensors

    def finish(self) -> Stored:
        """Commit the upload."""
        return self._incoming.commit()

    def abandon(self) -> None:
        self._incoming.abandon()

    def _header_bytes(self) -> int | None:
        """The header's length, None until it is known."""
        assert self._header is not None  # `feed` asks before it is read
        if len(self._header) < _LENGTH:
            return None
        length = int(struct.unpack("<Q", self._header[:_LENGTH])[0])
        if length > MAX_HEADER:
            why = f"is no safetensors file, or has a header of more than {MAX_HEADER} bytes; pickled weights are never read"
            raise invalid_field("file", "not_safetensors", why)
        return length

    def _check_finite(self, block: bytes) -> None:
        """Check the numbers that end in this block."""
        held = memoryview(self._rest + block)
        while held and self._place < len(self._tensors):
            tensor = self._tensors[self._place]
            number = _NUMBERS[tensor.dtype]
            size = min(len(held), tensor.end - self._data)
            size -= size % number.bytes
            if size == 0 and self._data < tensor.end:
                break  # the rest of a number comes with the next block
            words = np.frombuffer(held[:size], number.words) if size else np.empty(0, number.words)
            if ((words & number.exponent) == number.exponent).any():
                raise invalid_field("file", "not_finite", f"holds a number that is not finite in {shown(tensor.name)}")
            self._data, held = self._data + size, held[size:]
            self._place += self._data == tensor.end
        self._rest = bytes(held)
        if self._place == len(self._tensors) and self._rest:
            raise invalid_field("file", "damaged", "goes on after the last tensor of its header")


def _tensors(header: bytes) -> tuple[Tensor, ...]:
    """The header's tensors in the order of their bytes. Raises Invalid."""
    if not header.startswith(b"{"):
        raise _no_header()
    try:
        listed = read_strictly(header.decode())
    except (ValueError, RecursionError):
        raise _no_header() from None
    texts = listed.pop("__metadata__", {})
    if not isinstance(texts, dict) or not all(isinstance(text, str) for text in texts.values()):
        raise _no_header()
    at = 0
    found = sorted((_tensor(name, said) for name, said in listed.items()), key=lambda one: (one[0], one[1].end))
    for start, tensor in found:
        rows, columns = tensor.shape
        if start != at or tensor.end - at != rows * columns * _NUMBERS[tensor.dtype].bytes:
            raise invalid_field("file", "damaged", f"has a header whose offsets of {shown(tensor.name)} cannot be right")
        at = tensor.end
    if not found:
        raise invalid_field("file", "no_tensors", "holds no tensors")
    return tuple(tensor for _, tensor in found)


def _no_header() -> Invalid:
    return invalid_field("file", "not_safetensors", "is no safetensors file: its header lists no tensors")


def _tensor(name: str, said: Any) -> tuple[int, Tensor]:
    """Where the tensor's bytes begin, and the tensor. Compares nothing longer than two sizes. Raises Invalid."""
    said = said if isinstance(said, dict) else {}
    dtype, shape, offsets = said.get("dtype"), said.get("shape"), said.get("data_offsets")
    if not isinstance(dtype, str) or not isinstance(shape, list) or not isinstance(offsets, list):
        raise _no_header()
    if dtype not in _NUMBERS:
        message = f"has {shown(name)} in {shown(dtype)}; what works: {', '.join(_NUMBERS)}"
        raise invalid_field("file", "wrong_dtype", message)
    if len(shape) != 2 or not all(_whole(size) and 0 < size <= _MAX_SIZE for size in shape):
        message = f"has {shown(name)} in a shape that is no matrix; those of LoRA have two sizes, at least 1 each"
        raise invalid_field("file", "no_matrix", message)
    if len(offsets) != 2 or not all(_whole(offset) and offset >= 0 for offset in offsets):
        raise invalid_field("file", "damaged", f"has a header whose offsets of {shown(name)} cannot be right")
    return offsets[0], Tensor(name, dtype, (shape[0], shape[1]), offsets[1])


def _whole(number: Any) -> bool:
    return isinstance(number, int) and not isinstance(number, bool)


def check_tensors(tensors: Sequence[Tensor], settings: PeftSettings, shapes: MatrixShapes, base: str) -> list[str]:
    """The modules whose matrices the adapter holds, alone or joined: of all layers, in the shapes of its rank and its base.
    Raises AdapterInvalid, which names every tensor that is wrong."""
    held = {tensor.name: tensor.shape for tensor in tensors}
    wanted: dict[str, dict[str, tuple[int, int]]] = {module: {} for module in shapes.modules}
    for path, module, inputs, outputs in shapes.matrices():
        wanted[module][f"{_PREFIX}{path}.lora_A.weight"] = (settings.rank, inputs)
        wanted[module][f"{_PREFIX}{path}.lora_B.weight"] = (outputs, settings.rank)
    modules = [module for module, names in wanted.items() if not names.keys().isdisjoint(held)]
    expected = {name: shape for module in modules for name, shape in wanted[module].items()}
    wrong = sum(held.get(name) != shape for name, shape in expected.items()) + len(held.keys() - expected.keys())
    if wrong:
        named = islice(_mistakes(held, expected, base, settings.rank), _MOST_ERRORS)
        errors = [FieldError(field="file", code="wrong_tensor", message=message) for message in named]
        raise AdapterInvalid(errors, error_count=wrong)
    if settings.target_modules is not None and set(settings.target_modules) != set(modules):
        message = f"lists the target_modules {', '.join(settings.target_modules)}; the file holds {', '.join(modules)}"
        raise AdapterInvalid([FieldError(field="config", code="modules_differ", message=message)], error_count=1)
    return shapes.own_modules(modules)


def _mistakes(
    held: Mapping[str, tuple[int, int]], expected: Mapping[str, tuple[int, int]], base: str, rank: int
) -> Iterator[str]:
    """What is wrong with each tensor: those that no base has, those that are missing, those of another shape."""
    yield from (f"holds {shown(name)}, which is no LoRA matrix of {base}" for name in held if name not in expected)
    yield from (f"lacks {name}, though it has other matrices of its module" for name in expected if name not in held)
    for name, shape in expected.items():
        if held.get(name, shape) != shape:
            yield f"holds {name} of shape {list(held[name])}; {base} and rank {rank} ask for {list(shape)}"
