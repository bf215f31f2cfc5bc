"""What a node says of itself: its settings, its devices, and what its memory holds."""

import json
import os
import shlex
import shutil
from pathlib import Path

import pytest
import torch

from contract.messages.node_messages import Device
from tests.worker.fleet import JOIN_TOKEN
from worker.data.object_cache import ObjectCache
from worker.hosts.device_discovery import beyond_hardware, find_devices
from worker.main_memory import available_memory
from worker.model.peak_memory import peak_bytes
from worker.model.plain.trainer import probe
from worker.replicas.base_loader import BaseError, load_base
from worker.replicas.memory_profile import Profile, Profiles, capacity_of, keep_profiles, measured, profiles_of
from worker.settings import Settings, SettingsError

GPUS = "0, GPU-aaaa, NVIDIA H100 80GB HBM3, 81559\n1, GPU-bbbb, NVIDIA A100-SXM4-40GB, 40960\n2, GPU-cccc, NVIDIA T4, 15360\n"


def settings(**given) -> Settings:
    return Settings(**{"api_url": "http://127.0.0.1:1", "join_token": JOIN_TOKEN, **given})


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """An environment without any of Motet's names."""
    for name in [name for name in os.environ if name.startswith("MOTET_")]:
        monkeypatch.delenv(name)
    return monkeypatch


@pytest.mark.parametrize(
    ("environment", "says"),
    [
        ({}, "MOTET_API_URL is not set"),
        ({"MOTET_API_URL": "nowhere"}, "MOTET_API_URL: must start with http://"),
        ({"MOTET_API_URL": "ftp://ada:hunter2@x"}, "must start with http:// or https://, got 'ftp://…@x'"),
        ({"MOTET_WORKER_SLOTS": "0"}, "MOTET_WORKER_SLOTS: Input should be greater than or equal to 1"),
        ({"MOTET_NODE_NAME": "a b"}, "MOTET_NODE_NAME: String should match pattern"),
        ({"MOTET_REDIS_URL": "localhost"}, "MOTET_REDIS_URL: String should match pattern"),
        ({"MOTET_REDIS_URL": "redis://:hunt/er@valkey:6379/0"}, "MOTET_REDIS_URL: must be of the form redis://"),
    ],
)
def test_a_wrong_environment_names_its_variables(plain, environment, says):
    if environment:
        plain.setenv("MOTET_API_URL", "http://127.0.0.1:1")
        plain.setenv("MOTET_JOIN_TOKEN", JOIN_TOKEN)
    for name, value in environment.items():
        plain.setenv(name, value)
    with pytest.raises(SettingsError) as caught:
        Settings.load()
    assert says in str(caught.value)
    assert "hunt" not in str(caught.value)


def test_nodes_that_share_a_scratch_folder_keep_apart(plain):
    one, other = settings(worker_dir="/s", node_name="one"), settings(worker_dir="/s", node_name="other")
    assert one.scratch != other.scratch


def test_cpu_slots_share_the_memory(monkeypatch):
    assert available_memory() > 0
    monkeypatch.setattr("worker.hosts.device_discovery.available_memory", lambda: 3 * 2**30)
    devices = find_devices(settings(worker_device="cpu", worker_slots=3))
    assert [(device.index, device.memory_bytes) for device in devices] == [(0, 2**30), (1, 2**30), (2, 2**30)]


@pytest.fixture
def smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A driver's tool that lists three GPUs."""
    tool = tmp_path / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\nprintf %s {shlex.quote(GPUS)}\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return monkeypatch


@pytest.mark.parametrize(
    ("visible", "found"),
    [
        (None, ["NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-40GB", "NVIDIA T4"]),
        ("2,0", ["NVIDIA T4", "NVIDIA H100 80GB HBM3"]),
        ("GPU-bb", ["NVIDIA A100-SXM4-40GB"]),
    ],
)
def test_gpus_are_those_a_process_would_see_in_its_order(smi, visible, found):
    if visible is not None:
        smi.setenv("CUDA_VISIBLE_DEVICES", visible)
    devices = find_devices(settings(worker_device="auto"))
    assert [device.type for device in devices] == found
    assert [device.index for device in devices] == list(range(len(found)))
    assert devices[0].memory_bytes > 2**30


def test_a_device_is_said_to_have_no_more_memory_than_executors_may_take(smi, monkeypatch):
    limit = 20 * 2**30
    whole, limited = (find_devices(settings(worker_device="cuda", worker_memory_bytes=most)) for most in (None, limit))
    assert any(device.memory_bytes < limit for device in whole)
    assert any(device.memory_bytes > limit for device in whole)
    assert [device.memory_bytes for device in limited] == [min(device.memory_bytes, limit) for device in whole]
    monkeypatch.setattr("worker.hosts.device_discovery.available_memory", lambda: 8 * 2**30)
    slots = find_devices(settings(worker_device="cpu", worker_slots=2, worker_memory_bytes=2**30))
    assert [device.memory_bytes for device in slots] == [2**30, 2**30]


def test_without_visible_gpus_a_node_has_slots_unless_gpus_were_asked_for(smi):
    smi.setenv("CUDA_VISIBLE_DEVICES", "")
    assert [device.type for device in find_devices(settings(worker_device="auto"))] == ["cpu"]
    with pytest.raises(SettingsError, match="lists no GPU"):
        find_devices(settings(worker_device="cuda"))


@pytest.mark.parametrize(
    ("printed", "lacks"),
    [("8.9", False), ("9.0", False), ("12.0", False), ("8.6", True), ("7.5", True), ("[N/A]", True)],
)
def test_a_node_understands_fp8_where_all_its_gpus_compute_in_it(tmp_path, monkeypatch, printed, lacks):
    tool = tmp_path / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\nprintf '0, GPU-a, 9.0\\n1, GPU-b, {printed}\\n'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    gpus = [Device(index=index, type="NVIDIA X", memory_bytes=1) for index in (0, 1)]
    assert beyond_hardware(gpus) == ({"precision=fp8"} if lacks else set())
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert beyond_hardware(gpus[:1]) == set()
    assert beyond_hardware([Device(index=0, type="cpu", memory_bytes=1)]) == {"precision=fp8"}


def test_a_base_in_fp8_is_refused_on_a_cpu_with_what_to_take_instead(tiny_base):
    with pytest.raises(BaseError, match=r"compute capability 8\.9 or later, and a CPU is none; take precision bf16, or nf4"):
        load_base(tiny_base.model_copy(update={"precision": "fp8"}), torch.device("cpu"))


@pytest.mark.parametrize("damage", [b"\0", b"", b"not a header"])
def test_a_changed_base_is_said_to_be_another_whatever_else_is_wrong_with_it(tiny_base, tmp_path, damage):
    """Weights are still checked when they are loaded; a file cut short does not load."""
    folder = shutil.copytree(tiny_base.source, tmp_path / "base")
    (weights,) = folder.glob("*.safetensors")
    weights.write_bytes(weights.read_bytes()[:-1] + damage if damage == b"\0" else damage)
    changed = tiny_base.model_copy(update={"source": str(folder)})
    with pytest.raises(BaseError, match=r"have revision [0-9a-f]{64}, the task is pinned to .*; bring the folder back"):
        load_base(changed, torch.device("cpu")).checked.result()
    weights.unlink()
    with pytest.raises(BaseError, match=r"holds no \*\.safetensors files"):
        load_base(changed, torch.device("cpu"))


@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        ("tokenizer.json", {"model": {"type": "of a later version"}}, "tokenizer cannot be read: Exception: "),
        ("tokenizer.json", {"added_tokens": [{}]}, "tokenizer cannot be read"),
        ("tokenizer_config.json", {"bos_token": 3}, "tokenizer cannot be read: TypeError: .*bos_token"),
        ("generation_config.json", {"eos_token_id": [[1]]}, "generation_config.json says no end tokens"),
    ],
)
def test_a_base_with_a_damaged_file_beside_its_weights_is_refused_in_words(file, change, message, tiny_base, tmp_path):
    folder = shutil.copytree(tiny_base.source, tmp_path / "base")
    path = folder / file
    path.write_text(json.dumps((json.loads(path.read_text()) if path.is_file() else {}) | change))
    with pytest.raises(BaseError, match=f"base model {tiny_base.name}: .*{message}"):
        load_base(tiny_base.model_copy(update={"source": str(folder)}), torch.device("cpu"))


def test_the_memory_model_is_measured_and_a_line(tiny_base):
    base = load_base(tiny_base, torch.device("cpu"))
    trainer, arena = base.trainer, base.trainer.arena
    profiles = Profiles(measured(trainer, 64), measured(trainer, 64, recompute=True))
    capacity = capacity_of(profiles, trainer, settings(worker_memory_bytes=2**31))
    assert capacity.memory_bytes + capacity.park_bytes == 2**31, "parked jobs have their share"
    assert capacity.model.per_row > arena.bytes_per_row
    assert trainer.forwards == 0, "a measurement is no training"
    for tokens in (320, 1024, 2048):
        for recompute in (False, True):
            model = capacity.of(recompute)
            predicted = model.predict(tokens, 0) - model.predict(64, 0)
            held = trainer.activation_bytes(tokens, 64, recompute) - trainer.activation_bytes(64, 64, recompute)
            assert predicted == pytest.approx(held, rel=0.1)
    assert profiles.recomputed.per_token < profiles.kept.per_token, "each layer's input alone is kept"
    assert measured(trainer, 250).per_token > profiles.kept.per_token, "attention costs a token more in a longer row"
    assert capacity_of(profiles, trainer, settings(worker_park_bytes=7)).park_bytes == 7


@pytest.mark.parametrize("recompute", [False, True], ids=["kept", "recomputed"])
@pytest.mark.parametrize("rank", [8, 64, 256])
def test_the_memory_model_holds_what_wide_adapters_keep(tiny_base, rank, recompute):
    """S of every matrix, as wide as the rank: as large as the base's own activations at a high one."""
    trainer = load_base(tiny_base, torch.device("cpu")).trainer
    profiles = Profiles(measured(trainer, 64), measured(trainer, 64, recompute=True))
    model = capacity_of(profiles, trainer, settings(worker_memory_bytes=2**31), rank=rank).of(recompute)
    trainer.arena.grow(rank)
    slot = trainer.arena.attach(rank, 1.0)
    known = [trainer.arena.master, trainer.arena.grad, *trainer.backbone.tensors()]
    few, many = (peak_bytes(lambda n=n: trainer.train(probe(n, 64, slot), recompute), known) for n in (256, 1024))
    assert many - few == pytest.approx(model.predict(1024, 0) - model.predict(256, 0), rel=0.15)


def test_a_profile_says_how_far_it_misses_and_is_never_negative():
    exact = Profile.fitted([100, 150, 200], [1300, 1800, 2300])
    assert (exact.constant, exact.per_token, exact.residual) == pytest.approx((300, 10, 0), abs=1e-6)
    softcapped = Profile.fitted([100, 150, 200], [1300, 1860, 2300])
    assert all(
        softcapped.constant + softcapped.residual + softcapped.per_token * n >= peak
        for n, peak in ((100, 1300), (150, 1860), (200, 2300))
    )
    assert Profile.fitted([100, 150, 200], [0, 1000, 2000]).constant == 0
    assert Profile.fitted([100, 150, 200], [9, 8, 7]).per_token == 0


def test_a_profile_is_measured_once_for_a_base_and_a_class_of_rows(tiny_base, tmp_path, monkeypatch):
    base, scratch, sizes = load_base(tiny_base, torch.device("cpu")), ObjectCache(tmp_path), []

    def noted(trainer, row_tokens, recompute=False):
        sizes.append((row_tokens, recompute))
        return Profile(1, 2, 3 + recompute)

    monkeypatch.setattr("worker.replicas.memory_profile.measured", noted)
    found = [profiles_of(base.trainer, base.ref, longest, scratch) for longest in (70, 128, 100, 20, 200, 256)]
    assert sizes == [(size, form) for size in (128, 64, 256) for form in (False, True)]
    assert set(found) == {Profiles(Profile(1, 2, 3), Profile(1, 2, 4))}
    profiles_of(base.trainer, base.ref.model_copy(update={"revision": "0" * 64}), 70, scratch)
    assert sizes[6:] == [(128, False), (128, True)]

    keep_profiles(base.trainer, base.ref, 128, scratch)
    other = load_base(tiny_base, torch.device("cpu"))
    assert profiles_of(other.trainer, other.ref, 70, scratch) == found[0]
    assert len(sizes) == 8, "read"
    profiles_of(other.trainer, other.ref, 20, scratch)
    assert sizes[8:] == [(64, False), (64, True)], "nothing is kept before the weights are known to be the base's"
