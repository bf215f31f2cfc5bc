"""The loading of a sharded base, in small: two ranks hold what its files hold."""

from argparse import Namespace
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from benchmarks.base_loading.__main__ import SHAPES, expected, measure
from benchmarks.base_loading.layered_base import write_layered
from worker.model.backbone import Backbone
from worker.policy.base_sharding import ShardPlan


def test_the_bytes_of_all_ranks_are_those_of_the_files(tmp_path: Path) -> None:
    given = Namespace(device="cpu", shape="toy", gpus=2, memory_gb=1.0)
    figures, rows, gate = measure(given, tmp_path)
    assert gate["passed"], gate
    assert gate["found"] > 10**6
    assert 0 < figures["first_progress_s"] <= figures["load_s_toy"]
    assert rows[0]["files"] == 3, "two of layers, and one of the ends"
    assert "sharded over 2 devices (4 of its 4 layers, embedding and head)" in rows[0]["what"]
    assert all(earlier["s"] <= later["s"] for earlier, later in pairwise(rows[1:]))


def test_a_base_that_is_written_layer_by_layer_is_one_that_loads(tmp_path: Path) -> None:
    sums = write_layered(SHAPES["toy"], tmp_path / "base", [torch.device("cpu")])
    backbone = Backbone.load(tmp_path / "base", dtype=torch.bfloat16)
    weight = backbone.layers[3].w_down
    assert isinstance(weight, torch.Tensor)
    assert int(weight.view(torch.uint8).sum(dtype=torch.int64)) == sums["model.layers.3.mlp.down_proj.weight"]


@pytest.mark.parametrize(("ends", "copies"), [(False, 2), (True, 1)])
def test_what_is_resident_counts_on_every_rank(ends: bool, copies: int) -> None:
    names = {"model.layers.1.mlp.up_proj.weight": 1, "model.layers.1.input_layernorm.weight": 10, "model.layers.11.x": 100}
    sums = names | {"model.norm.weight": 1000, "lm_head.weight": 10000}
    assert expected(sums, ShardPlan(2, (1,), ends)) == 1 + 20 + 200 + 2000 + copies * 10000
