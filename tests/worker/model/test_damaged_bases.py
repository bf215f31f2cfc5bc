"""Folders of a base with files that are damaged, or that the disk does not give: refused in words, and no process ends."""

import errno
import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from tests.worker.model import tiny
from worker.model.backbone import Backbone
from worker.model.base_weight_reader import in_folder
from worker.model.families import UnsupportedModelError

CONFIGS = tiny.configs()
PRECISIONS = ["bf16", "nf4", "nf4_double", "fp8"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A base in three files."""
    tiny.model(CONFIGS["qwen3"]).save_pretrained(tmp_path, max_shard_size="150KB")
    return tmp_path


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: (folder / "model-00002-of-00003.safetensors").write_bytes(b"not a tensor"), "00002.*cannot be read"),
        (lambda folder: (folder / "model-00002-of-00003.safetensors").unlink(), "not there: model-00002"),
        (lambda folder: (folder / "model.safetensors.index.json").write_text("[]"), "is no index"),
        (lambda folder: (folder / "model.safetensors.index.json").unlink(), "no model folder"),
    ],
)
def test_a_damaged_folder_is_refused_by_what_is_wrong(damage: Callable[[Path], Any], message: str, tmp_path: Path) -> None:
    tiny.model(CONFIGS["qwen3"]).save_pretrained(tmp_path, max_shard_size="150KB")
    assert len(list(tmp_path.glob("*.safetensors"))) == 3
    damage(tmp_path)
    with pytest.raises(UnsupportedModelError, match=message):
        Backbone.load(tmp_path)


def test_a_file_that_is_cut_short_is_named_with_the_first_tensor_that_it_lacks(tmp_path: Path) -> None:
    tiny.model(CONFIGS["qwen3"]).save_pretrained(tmp_path, max_shard_size="150KB")
    file = tmp_path / "model-00002-of-00003.safetensors"
    content = file.read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")
    held = {name: one["data_offsets"] for name, one in json.loads(content[8:start]).items() if name != "__metadata__"}
    first, second = sorted(held, key=held.__getitem__)[1:3]
    for size, lost in ((start + held[first][1], second), (start + held[first][1] - 1, first)):
        file.write_bytes(content[:size])
        end = start + held[lost][1]
        message = (
            f"00002-of-00003.safetensors cannot be read: it is cut short after {size} bytes: {lost} should end at byte {end}"
        )
        with pytest.raises(UnsupportedModelError, match=re.escape(message)):
            Backbone.load(tmp_path)
    file.write_bytes(content[: start - 1])
    with pytest.raises(UnsupportedModelError, match=r"00002-of-00003.safetensors cannot be read"):
        Backbone.load(tmp_path)


def _file(header: bytes, length: int | None = None) -> bytes:
    return (len(header) if length is None else length).to_bytes(8, "little") + header


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(_file(b"[" * 200_000), id="nested deeply"),
        pytest.param(_file(b'{"t": {"data_offsets": ' + b"[" * 200_000), id="offsets nested deeply"),
        pytest.param(_file(b'{"t": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8.5]}}'), id="half a byte"),
        pytest.param(_file(b"{}", 1 << 40), id="a header longer than the file"),
        pytest.param(b"", id="empty"),
    ],
)
def test_a_header_that_says_nothing_true_is_refused_as_unreadable(content: bytes, tmp_path: Path) -> None:
    tiny.model(CONFIGS["qwen3"]).save_pretrained(tmp_path, max_shard_size="150KB")
    (tmp_path / "model-00002-of-00003.safetensors").write_bytes(content)
    with pytest.raises(UnsupportedModelError, match=r"00002-of-00003.safetensors cannot be read.*; bring the folder anew"):
        Backbone.load(tmp_path)


def _rewritten(file: Path, change: Callable[[dict[str, Any], bytearray], Any]) -> None:
    """Write the file anew with another header, or other bytes behind it."""
    content = file.read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")
    header, tensors = json.loads(content[8:start]), bytearray(content[start:])
    change(header, tensors)
    file.write_bytes(_file(json.dumps(header).encode()) + tensors)


def _moved(header: dict[str, Any], tensors: bytearray) -> None:
    """The last tensor lies 64 bytes later: there is a gap."""
    last = max((name for name in header if name != "__metadata__"), key=lambda name: header[name]["data_offsets"])
    first, stop = header[last]["data_offsets"]
    header[last]["data_offsets"] = [first + 64, stop + 64]
    tensors[first:first] = bytes(64)


def _twice(header: dict[str, Any], tensors: bytearray) -> None:
    """Two tensors lie on the same bytes."""
    places = {name: one["data_offsets"] for name, one in header.items() if name != "__metadata__"}
    one, other = next((a, b) for a in places for b in places if a != b and header[a]["shape"] == header[b]["shape"])
    header[one]["data_offsets"] = places[other]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (_moved, r"begins at byte .* of the tensors, of which those before it end at"),
        (_twice, r"begins at byte .* of the tensors, of which those before it end at"),
        (lambda header, tensors: tensors.extend(bytes(5)), "5 bytes stand behind its tensors"),
    ],
    ids=["gap", "overlap", "more"],
)
def test_a_file_that_holds_more_or_less_than_its_tensors_is_refused(damage: Any, message: str, folder: Path) -> None:
    file = folder / "model-00002-of-00003.safetensors"
    _rewritten(file, damage)
    with pytest.raises(SafetensorError):
        load_file(file)
    with pytest.raises(UnsupportedModelError, match=rf"00002-of-00003.safetensors cannot be read: .*{message}"):
        Backbone.load(folder)


def test_a_file_without_metadata_is_read_as_the_library_reads_it(folder: Path) -> None:
    file, was = folder / "model-00002-of-00003.safetensors", [tensor.clone() for tensor in Backbone.load(folder).tensors()]
    for said in (None, {}):
        _rewritten(file, lambda header, tensors, said=said: header.update(__metadata__=said))
        load_file(file)
        assert all(torch.equal(now, before) for now, before in zip(Backbone.load(folder).tensors(), was, strict=True))


def test_a_tensor_that_a_shard_lacks_is_named_with_the_shard(tmp_path: Path) -> None:
    tiny.model(CONFIGS["qwen3"]).save_pretrained(tmp_path, max_shard_size="150KB")
    file = tmp_path / "model-00002-of-00003.safetensors"
    tensors = load_file(file)
    lost = min(tensors)
    save_file({name: tensor for name, tensor in tensors.items() if name != lost}, file)
    with pytest.raises(UnsupportedModelError, match=rf"{lost} .* of model-00002-of-00003\.safetensors"):
        Backbone.load(tmp_path)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["as stored", "converted"])
def test_a_file_that_is_cut_while_it_is_loaded_ends_no_process(precision: Any, dtype: torch.dtype, folder: Path) -> None:
    """Of a mapped file that did: it was killed by SIGBUS."""

    def cut(loaded: int, whole: int) -> None:
        for file in folder.glob("*.safetensors"):
            os.truncate(file, 4096)

    with pytest.raises(UnsupportedModelError, match=r"model-0000\d-of-00003\.safetensors cannot be read: it ends .* early"):
        Backbone.load(folder, dtype=dtype, precision=precision, on_progress=cut)


def test_a_page_that_the_disk_does_not_give_is_an_error_of_the_base(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held, real = in_folder(folder), os.preadv
    weight = held["model.layers.1.mlp.up_proj.weight"]
    whole = weight.read(slice(0, 4))

    def bad(descriptor: int, buffers: Any, place: int) -> int:
        if place % 2:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(descriptor, [buffers[0][:1]], place)  # a disk may give less than was asked for

    monkeypatch.setattr(os, "preadv", bad)
    with pytest.raises(UnsupportedModelError, match=r"safetensors cannot be read: \[Errno 5\] .*; bring the folder anew"):
        weight.read(slice(0, 4))
    monkeypatch.setattr(os, "preadv", lambda descriptor, buffers, place: real(descriptor, [buffers[0][:7]], place))
    assert torch.equal(weight.read(slice(0, 4)), whole)


@pytest.mark.parametrize("in_place", [True, False])
def test_a_loaded_base_keeps_its_numbers_when_its_files_change(in_place: bool, folder: Path) -> None:
    loaded = Backbone.load(folder)  # float32, as stored: nothing had to be copied of mapped files
    was = [tensor.clone() for tensor in loaded.tensors()]
    for file in folder.glob("*.safetensors"):
        if in_place:
            file.write_bytes(bytes(file.stat().st_size))
        else:
            os.truncate(file, 0)
    assert all(torch.equal(now, before) for now, before in zip(loaded.tensors(), was, strict=True))


def test_a_file_that_takes_the_name_of_one_that_is_open_changes_nothing(folder: Path) -> None:
    held = in_folder(folder)
    was = {name: tensor.read(slice(None)) for name, tensor in held.items()}
    for file in folder.glob("*.safetensors"):
        other = file.with_suffix(".new")
        other.write_bytes(bytes(file.stat().st_size))
        other.replace(file)
    assert all(torch.equal(tensor.read(slice(None)), was[name]) for name, tensor in held.items())


def test_files_are_closed_once_nothing_reads_them(folder: Path) -> None:
    def opened() -> int:
        return sum(str(folder) in os.readlink(one) for one in Path("/proc/self/fd").iterdir() if one.is_symlink())

    held = in_folder(folder)
    assert opened() == 3
    del held
    assert opened() == 0
