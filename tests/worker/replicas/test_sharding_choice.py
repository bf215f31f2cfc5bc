"""How the devices of a placement hold a base, chosen by memory: what is said of it is what is loaded."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from tests.worker.fleet import JOIN_TOKEN
from worker.model.arena import Arena
from worker.model.backbone import Backbone
from worker.model.base_weight_reader import adapter_columns, part_bytes, pass_bytes
from worker.model.cuda.device_arena import DeviceArena
from worker.model.plain.trainer import Trainer
from worker.policy.base_sharding import BaseSizes, everything
from worker.replicas.memory_profile import Profile, Profiles, adapter_row_bytes, capacity_of, limit_memory
from worker.replicas.sharding_choice import NOTHING_ELSE, Wanted, choose_sharding, room_beside
from worker.settings import Settings

CPU = torch.device("cpu")
TOKENS = 64  # of a pass
SETTINGS = Settings(api_url="http://nowhere", join_token=JOIN_TOKEN)


def chosen(base, memory: int | None = None, devices: int = 2, wanted: Wanted = NOTHING_ELSE, **more):
    """On devices with so many bytes each."""
    settings = Settings(
        api_url="http://nowhere",
        join_token=JOIN_TOKEN,
        worker_memory_bytes=None if memory is None else memory * devices,
        **{"worker_step_tokens": TOKENS} | more,
    )
    return choose_sharding(base, [CPU] * devices, settings, wanted)


def need(base) -> tuple[BaseSizes, int]:
    folder = Path(base.source)
    sizes = BaseSizes(*part_bytes(folder, torch.float32, base.precision))
    return sizes, pass_bytes(folder, torch.float32, base.precision, TOKENS)


@pytest.mark.parametrize("precision", ["bf16", "nf4"])
def test_less_memory_shards_more_layers_and_each_rank_holds_what_is_said(deep_base, precision):
    base = deep_base.model_copy(update={"precision": precision})
    sizes, room = need(base)
    fits = round((sizes.whole + room) / 0.9) + 2
    assert chosen(base, fits) is None
    assert chosen(base, fits - 8, devices=1) is None, "nobody to share it with"
    partly = chosen(base, fits - max(sizes.layers) // 2, devices=4)
    assert 2 < len(partly.plan.layers) < 5
    assert "partly sharded over 4 devices" in partly.sentence
    most = chosen(base, 1000, devices=4)
    assert most.plan.layers == tuple(range(5))
    assert not most.plan.ends, "buffers as large as its embedding would take more than that saves"
    forced = chosen(base, devices=4, worker_sharding="always")
    assert forced.plan == everything(sizes, 4)
    for found in (partly, most, forced):
        backbone = Backbone.load(base.source, precision=precision, sharding=found.of(3))
        held = {one.untyped_storage().data_ptr(): one.untyped_storage().nbytes() for one in backbone.tensors()}
        assert sum(held.values()) == pytest.approx(found.held_bytes, rel=0.05)


def test_layers_make_room_for_the_adapters_of_a_rank_where_the_base_is_sharded_anyway(deep_base):
    """Beside copies adapters wait for rows, as on any device."""
    sizes, room = need(deep_base)
    many = Wanted((8,) * 16)
    fits = round((sizes.whole + room) / 0.9) + 2
    assert chosen(deep_base, fits, wanted=many) is None
    less = fits - max(sizes.layers) // 4
    none, some = (chosen(deep_base, less, devices=4, wanted=wanted) for wanted in (NOTHING_ELSE, many))
    assert len(none.plan.layers) < len(some.plan.layers)
    assert many.rows(4) == 4 * 8
    assert Wanted((8, 64, 16, 8, 9)).rows(2) == 64 + 16 + 8


def test_a_task_of_short_steps_leaves_more_layers_whole(deep_base, monkeypatch):
    """As far as the next task's longest pass, of 1,024 tokens on a CPU, finds room beside one adapter."""
    sizes = BaseSizes((1 << 20,) * 40, (), 1 << 20)
    monkeypatch.setattr("worker.replicas.sharding_choice.part_bytes", lambda *given: (sizes.layers, sizes.ends, sizes.resident))
    room = pass_bytes(Path(deep_base.source), torch.float32, "bf16", 1024)

    def layers(jobs: int, *step_tokens: int, more: int = 0) -> int:
        wanted, memory = Wanted((8,) * jobs, step_tokens), round((sizes.whole + room) / 0.9) + more
        found = chosen(deep_base, memory, devices=4, wanted=wanted, worker_step_tokens=None)
        return len(found.plan.layers) if found is not None else 0

    assert layers(16, 8, more=2) == layers(16, more=2) == 0, "whether depends on no task"
    assert 0 < layers(16, *(8,) * 16, more=-2) < layers(16, *(220,) * 16, more=-2) < layers(16, *(300,) * 16, more=-2)
    assert layers(16, *(300,) * 16, more=-2) == layers(16, more=-2), "as where nothing is known"
    assert layers(4, *(8,) * 4, more=-2) == layers(4, more=-2) > 3, "another task's pass beside one adapter"
    assert Wanted(step_tokens=(8, 16, 24, 100, 50)).pass_tokens(2, 1024) == 100 + 24 + 8, "of the fullest device"
    assert Wanted(step_tokens=(8, 16, 24, 100, 50)).pass_tokens(2, 64) == Wanted().pass_tokens(2, 64) == 64


def test_the_room_beside_a_base_holds_the_task_that_loads_it_and_one_job_of_the_next() -> None:
    assert room_beside(own_pass=10, longest_pass=80, adapters=75, widest=35) == 80 + 35
    assert room_beside(own_pass=50, longest_pass=80, adapters=75, widest=35) == 50 + 75
    assert room_beside(own_pass=80, longest_pass=80, adapters=75, widest=75) == 80 + 75


@pytest.mark.parametrize(("given", "share"), [(20 * 10**9, 0.25), (None, 1.0), (100 * 10**9, 1.0)])
def test_a_gpu_has_no_more_memory_for_a_process_than_an_operator_gave_it(monkeypatch, given, share):
    told = []
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(total_memory=80 * 10**9))
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", lambda *said: told.append(said))
    limit_memory(torch.device("cuda", 1), SETTINGS.model_copy(update={"worker_memory_bytes": given}))
    limit_memory(CPU, SETTINGS)
    assert told == [(share, torch.device("cuda", 1))]


@pytest.mark.parametrize("moments", ["fp32", "8bit"])
def test_an_adapter_takes_what_was_counted_before_there_was_an_arena(deep_base, moments):
    backbone, settings = Backbone.load(deep_base.source), SETTINGS.model_copy(update={"worker_moments": moments})
    columns = adapter_columns(Path(deep_base.source))
    arena = Arena(backbone.targets, 8, CPU, eight_bit=moments == "8bit")
    on_device = DeviceArena(backbone.targets, 8, CPU, torch.bfloat16, eight_bit=moments == "8bit")
    profile = Profile(0.0, 0.0, 0.0)
    counted = capacity_of(Profiles(profile, profile), Trainer(backbone, arena), settings).model.per_row
    assert adapter_row_bytes(columns, CPU, settings) == pytest.approx(counted, rel=0.02)
    assert adapter_row_bytes(columns, torch.device("cuda"), settings) == pytest.approx(on_device.bytes_per_row, rel=0.02)


def test_where_texts_are_wanted_copies_are_held_as_long_as_they_fit(deep_base):
    sizes, _ = need(deep_base)
    assert chosen(deep_base, sizes.whole) is not None
    assert chosen(deep_base, sizes.whole, wanted=Wanted(generates=True)) is None
    assert chosen(deep_base, sizes.whole - 2, wanted=Wanted(generates=True)) is not None


def test_an_operator_may_forbid_or_force_it(deep_base):
    assert chosen(deep_base, 1000, worker_sharding="never") is None
    assert chosen(deep_base) is None, "it fits"
    forced = chosen(deep_base, worker_sharding="always")
    assert forced.plan == everything(need(deep_base)[0], 2)
    assert chosen(deep_base, worker_sharding="always", devices=1) is None


def test_a_folder_without_a_configuration_is_left_to_loading_to_refuse(deep_base, tmp_path):
    assert chosen(deep_base.model_copy(update={"source": str(tmp_path)}), 1000) is None
