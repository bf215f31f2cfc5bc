"""Checkpoints and the scratch folder: what is written comes back bit for bit, or not at all."""

import hashlib
import json
import os

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from worker.adapters.job_checkpoint import CheckpointError, Tensors, UnreadableWeights, load_progress, load_tensors, save
from worker.data.object_cache import ObjectCache, WrongBytes
from worker.model.arena import AdapterState
from worker.policy.early_exit.policy_interface import History
from worker.policy.job_record import AVERAGED, Best, JobProgress

FINITE = st.floats(allow_nan=False, allow_infinity=False)
WINDOWS = st.lists(FINITE, max_size=5).map(tuple)
PROGRESS = st.builds(
    JobProgress,
    step=st.integers(0, 10**6),
    ema=st.none() | FINITE,
    history=st.builds(History, WINDOWS, WINDOWS, st.integers(0, 9), st.integers(0, 9), st.none() | FINITE),
    lowest=st.lists(st.builds(Best, st.integers(1, 99), FINITE), max_size=AVERAGED).map(tuple),
    rung_losses=st.lists(FINITE, max_size=3).map(tuple),
)


def tensors(rank: int = 3, seed: int = 0, lowest: int = 1) -> Tensors:
    draw = torch.Generator().manual_seed(seed)
    parts = [torch.randn(rank, 16, generator=draw) for _ in range(3 + lowest)]
    return Tensors(AdapterState(*parts[:3]), tuple(parts[3:]))


def same(one: Tensors, other: Tensors) -> bool:
    a, b = one.named(), other.named()
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@given(PROGRESS)
def test_progress_comes_back_as_it_was(tmp_path_factory, progress):
    path = tmp_path_factory.mktemp("c") / "state"
    save(path, progress, tensors(lowest=len(progress.lowest)))
    assert load_progress(path) == progress
    assert same(load_tensors(path), tensors(lowest=len(progress.lowest)))


def test_what_is_no_checkpoint_says_so(tmp_path):
    path = tmp_path / "x"
    path.write_bytes(b"not tensors")
    with pytest.raises(CheckpointError, match="x is not a checkpoint"):
        load_progress(path)
    save_file({"weights": torch.zeros(1)}, path)
    with pytest.raises(CheckpointError, match="x is not a checkpoint"):
        load_progress(path)
    save_file({"weights": torch.zeros(1)}, path, metadata={"motet_checkpoint": json.dumps({"format": 99})})
    with pytest.raises(CheckpointError, match="another format"):
        load_progress(path)


def test_one_that_the_disk_does_not_give_back_is_no_fault_of_the_checkpoint(tmp_path):
    with pytest.raises(UnreadableWeights, match=r"MOTET_WORKER_DIR cannot be read: .* Is a directory"):
        load_progress(tmp_path)


@pytest.mark.parametrize("bare", [False, True])
def test_a_file_that_is_cut_while_it_is_read_costs_its_job_alone(tmp_path, monkeypatch, bare):
    """Of a mapped file that ended the process: it was killed by SIGBUS."""
    path, empty = tmp_path / "x", torch.empty
    save(path, JobProgress(), Tensors(AdapterState(*(torch.zeros(8, 4096) for _ in range(3)))))

    def cut(*args, **kwargs):
        os.truncate(path, 5000)
        return empty(*args, **kwargs)

    monkeypatch.setattr(torch, "empty", cut)
    with pytest.raises(UnreadableWeights, match=r"MOTET_WORKER_DIR cannot be read: it ends .* bytes early"):
        load_tensors(path, bare)


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content[:5],
        lambda content: content[:100],
        lambda content: content[:-1],
        lambda content: bytes(len(content)),
        lambda content: b"\xff" * len(content),
        lambda content: content.replace(b'"weights"', b'"weighty"'),
        lambda content: content.replace(b"[3,16]", b"[3,61]", 1),
        lambda content: content.replace(b"F32", b"F33"),
    ],
)
def test_a_damaged_file_cannot_be_read(tmp_path, damage):
    path = tmp_path / "x"
    save(path, JobProgress(), tensors())
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(UnreadableWeights, match="the file of its adapter in MOTET_WORKER_DIR cannot be read: "):
        load_tensors(path)


def test_an_object_is_whole_and_named_by_its_bytes(tmp_path):
    scratch = ObjectCache(tmp_path / "s")
    content = b"a" * 3_000_000
    digest = hashlib.sha256(content).hexdigest()
    asked = []

    def blocks():
        asked.append(1)
        yield content[:1_000_000]
        yield content[1_000_000:]

    path = scratch.fetch(digest, blocks)
    assert path.read_bytes() == content
    assert scratch.fetch(digest, blocks) == path
    assert asked == [1], "what is here is not fetched again"
    with pytest.raises(WrongBytes, match="asked was for"):
        scratch.fetch("0" * 64, lambda: [b"other"])
    assert [p.name for p in scratch.folder.iterdir()] == [digest]


def test_a_download_that_breaks_leaves_nothing(tmp_path):
    scratch = ObjectCache(tmp_path / "s")

    def blocks():
        yield b"half"
        raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        scratch.fetch("0" * 64, blocks)
    assert list(scratch.folder.iterdir()) == []
