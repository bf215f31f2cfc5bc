"""How the devices of a placement hold a base, chosen by memory: what is said of it is what is loaded."""

from pathlib import Path

import pytest
import torch

from tests.worker.fleet import JOIN_TOKEN
from worker.model.backbone import Backbone
from worker.model.base_weight_reader import part_bytes, pass_bytes
from worker.policy.base_sharding import BaseSizes, everything
from worker.replicas.sharding_choice import choose_sharding
from worker.settings import Settings

CPU = torch.device("cpu")
TOKENS = 64  # of a pass


def chosen(base, memory: int | None = None, devices: int = 2, generates: bool = False, **more):
    """On devices with so many bytes each."""
    settings = Settings(
        api_url="http://nowhere",
        join_token=JOIN_TOKEN,
        worker_step_tokens=TOKENS,
        worker_memory_bytes=None if memory is None else memory * devices,
        **more,
    )
    return choose_sharding(base, [CPU] * devices, settings, generates)


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


def test_where_texts_are_wanted_copies_are_held_as_long_as_they_fit(deep_base):
    sizes, _ = need(deep_base)
    assert chosen(deep_base, sizes.whole) is not None
    assert chosen(deep_base, sizes.whole, generates=True) is None
    assert chosen(deep_base, sizes.whole - 2, generates=True) is not None


def test_an_operator_may_forbid_or_force_it(deep_base):
    assert chosen(deep_base, 1000, worker_sharding="never") is None
    assert chosen(deep_base) is None, "it fits"
    forced = chosen(deep_base, worker_sharding="always")
    assert forced.plan == everything(need(deep_base)[0], 2)
    assert chosen(deep_base, worker_sharding="always", devices=1) is None


def test_a_folder_without_a_configuration_is_left_to_loading_to_refuse(deep_base, tmp_path):
    assert chosen(deep_base.model_copy(update={"source": str(tmp_path)}), 1000) is None
