"""Executors on GPUs map what they gather into each other, from whichever GPU they start, and give it back with their base."""

import gc

import pytest
import torch

from tests.worker.fleet import JOIN_TOKEN
from worker.model.sharding.weight_shards import layer_unit
from worker.replicas.ranks.rank_group import RankGroup
from worker.settings import Settings

pytestmark = pytest.mark.gpu


@pytest.fixture
def settings() -> Settings:
    if torch.cuda.device_count() < 2:
        pytest.skip("NOT RUN: a base that GPUs share needs two")
    given = {"worker_device": "cuda", "worker_sharding": "always"}
    return Settings(api_url="http://nowhere", join_token=JOIN_TOKEN, **given)


def test_base_after_base_from_any_first_gpu(deep_base, settings: Settings) -> None:
    group = RankGroup(lambda silent: None)
    for first, second in ((1, 0), (0, 1), (1, 0), (1, 0)):
        loaded = group.load(deep_base, [torch.device("cuda", first), torch.device("cuda", second)], settings)
        shards = loaded.base.trainer.backbone.shards
        assert shards is not None
        assert shards.collectives is not None
        if torch.cuda.get_device_capability()[0] >= 9:
            assert shards.collectives._shared is not None, "before Hopper torch has no such memory"
        with shards.one_pass(backward=False):
            shards.run_empty_pass(backward=False)
        torch.cuda.synchronize(first)
        assert all(weight.any() for weight in shards.views(layer_unit(4)))
        group.close()
        del loaded, shards
        gc.collect()
        torch.cuda.empty_cache()  # raises where what it frees is still mapped
