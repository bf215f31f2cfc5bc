"""The header of a safetensors file as it comes: in blocks of any size, damaged, or made to cost much."""

import gc
import json
import struct
import sys
from typing import Any

import pytest

from contract.messages.peft_settings import PeftSettings
from service.adapters import adapter_intake
from service.adapters.adapter_intake import MAX_HEADER, AdapterIntake, AdapterInvalid, Tensor, check_tensors
from service.adapters.matrix_shapes import MatrixShapes
from service.http.problems import FieldError, Invalid
from tests.service.adapters.adapter_uploads import BASE, safetensors, tensors

WHOLE, NAMES = safetensors(tensors()), list(tensors())


class Kept:
    """Storage's side of an upload."""

    def __init__(self) -> None:
        self.bytes = b""

    def write(self, block: bytes) -> None:
        self.bytes += block

    def abandon(self) -> None: ...


def fed(content: bytes, size: int = 2**20) -> tuple[AdapterIntake, Kept]:
    """The content in blocks of this size."""
    kept = Kept()
    intake = AdapterIntake(kept, 2**22)
    for at in range(0, len(content), size):
        intake.feed(content[at : at + size])
    return intake, kept


def file_of(header: str | bytes) -> bytes:
    said = header.encode() if isinstance(header, str) else header
    return struct.pack("<Q", len(said)) + said


def entry(**changes: Any) -> str:
    return json.dumps({"a": {"dtype": "F32", "shape": [1, 1], "data_offsets": [0, 4]} | changes})


@pytest.mark.parametrize("size", [1, 3, 7, 4096])
def test_blocks_may_end_anywhere(size):
    intake, kept = fed(WHOLE, size)
    assert [tensor.name for tensor in intake.tensors()] == NAMES
    assert kept.bytes == WHOLE
    last = WHOLE[:-4] + struct.pack("<f", float("inf"))
    with pytest.raises(Invalid, match="not finite"):
        fed(last, size)


def test_what_it_holds_in_memory_is_bounded():
    intake = AdapterIntake(Kept(), 2**40)
    with pytest.raises(Invalid, match="no safetensors file"):
        intake.feed((MAX_HEADER + 1).to_bytes(8, "little"))


WRONG = {
    "a vector": (entry(shape=[1]), "no matrix; those"),
    "an empty matrix": (entry(shape=[0, 1], data_offsets=[0, 0]), "no matrix"),
    "a side that no matrix has": (entry(shape=[2**31, 1]), "no matrix"),
    "a side that is no number": (entry(shape=[True, 1]), "no matrix"),
    "a number of 4,000 digits": (entry(data_offsets=[0, 10**4000]), "cannot be right"),
    "one offset": (entry(data_offsets=[4]), "cannot be right"),
    "a negative offset": (entry(data_offsets=[-4, 0]), "cannot be right"),
    "a dtype that is a list": (entry(dtype=["F32"]), "lists no tensors"),
    "no entry": (json.dumps({"a": 1}), "lists no tensors"),
    "two of one name": (f"{entry()[:-1]}, {entry()[1:]}", "lists no tensors"),
    "metadata of numbers": (json.dumps({"__metadata__": {"a": 1}}), "lists no tensors"),
    "no JSON": (entry(more=float("nan")), "lists no tensors"),
    "another encoding": (entry().encode("utf-16"), "lists no tensors"),
    "a list": ("[]", "lists no tensors"),
    "a deep one": ('{"a": ' + "[" * 100_000, "lists no tensors"),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_header_is_refused(what):
    header, words = WRONG[what]
    with pytest.raises(Invalid, match=words):
        fed(file_of(header))


def calls_to_refuse(header: str) -> int:
    """Calls, of Python's functions and of C's, until the file is refused."""
    content, counted = file_of(header), 0

    def count(*_: object) -> None:
        nonlocal counted
        counted += 1

    before = sys.getprofile()
    gc.disable()  # what it calls is nothing of the file's
    sys.setprofile(count)
    try:
        fed(content)
    except Invalid:
        return counted
    finally:
        sys.setprofile(before)
        gc.enable()
    raise AssertionError(f"was taken: {header:.80}")


@pytest.mark.parametrize("field", ["shape", "data_offsets"])
def test_a_long_list_costs_no_more_than_a_short_one(field):
    assert calls_to_refuse(entry(**{field: [2] * 100_000})) == calls_to_refuse(entry(**{field: [2] * 3}))


def test_of_many_mistakes_a_hundred_are_written(monkeypatch):
    written = []

    def noted(**said: Any) -> FieldError:
        written.append(said)
        return FieldError(**said)

    monkeypatch.setattr(adapter_intake, "FieldError", noted)
    strangers = [Tensor(f"t{number}", "F32", (1, 1), 4 * number) for number in range(5000)]
    with pytest.raises(AdapterInvalid) as refused:
        check_tensors(strangers, PeftSettings(rank=2, alpha=2), MatrixShapes.read(json.dumps(BASE).encode(), "base"), "toy")
    assert (len(written), len(refused.value.errors), refused.value.extra["error_count"]) == (100, 100, 5000)
