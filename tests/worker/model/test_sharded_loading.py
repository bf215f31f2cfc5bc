"""Processes that load a sharded base from a folder: which bytes each reads, and that they gather what one process stores."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from tests.worker.model.shard_ranks import Case, Ranks, backbone_of, digest, model, reference
from worker.model.base_weight_reader import EMBEDDING, HEAD
from worker.model.sharding.frozen_tensors import tensors_of
from worker.model.sharding.weight_shards import EMBEDDING_UNIT, HEAD_UNIT, layer_unit

ALL, MOST = (0, 1, 2, 3, 4), 3  # times that a matrix of codes is read: by the ranks of its codes, and two of its scales
UNTIED = Case("llama3_rope", (((5,),), ((3, 4), (2,))), ALL, ends=True)
TIED = Case("qwen2", (((5,),), ((3, 4), (2,))), (0, 2, 3))


@pytest.fixture(scope="module", params=[2, 4])
def ranks(request) -> Iterator[Ranks]:
    ranks = Ranks(request.param)
    yield ranks
    ranks.close()


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, Path]:
    """Each model in files of which none holds a whole layer."""
    found = {}
    for case in (UNTIED, TIED):
        found[case.config] = folder = tmp_path_factory.mktemp(case.config)
        model(case).to(torch.bfloat16).save_pretrained(folder, max_shard_size="20KB")
    return found


def stored_bytes(folder: Path) -> dict[str, tuple[int, int]]:
    """Of each tensor, and of one of its rows."""
    found = {}
    for file in folder.glob("*.safetensors"):
        with safe_open(file, framework="pt") as opened:
            for name in opened.keys():  # noqa: SIM118
                tensor = opened.get_tensor(name)
                found[name] = tensor.nbytes, tensor[0].nbytes
    return found


def whole_units(case: Case) -> dict[str, str]:
    """As `units_of`, of a base that one process has whole."""
    backbone = backbone_of(case)
    found = {EMBEDDING_UNIT: digest([backbone.embedding]), HEAD_UNIT: digest([backbone.head])} if case.ends else {}
    for layer in case.layers:
        block = backbone.layers[layer]
        maps = (block.w_qkv, block.w_o, block.w_gate_up, block.w_down)
        found[layer_unit(layer)] = digest([tensor for one in maps for tensor in tensors_of(one)])
    return found


def sharded(name: str, case: Case) -> bool:
    if name in (EMBEDDING, HEAD):
        return case.ends
    return name.endswith("proj.weight") and int(name.split(".")[2]) in case.layers


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("precision", ["bf16", "nf4", "nf4_double", "fp8"])
@pytest.mark.parametrize("case", [UNTIED, TIED], ids=["untied", "tied"])
def test_ranks_read_their_own_parts_and_gather_what_one_process_stores(ranks, folders, case, precision, dtype):
    world = len(ranks.processes)
    passes = (case.passes * 2)[:world] if dtype == torch.float32 else ((),) * world
    case = replace(case, folder=str(folders[case.config]), precision=precision, dtype=dtype, passes=passes)
    seen = ranks.run(case)
    units, stored, read = whole_units(case), stored_bytes(folders[case.config]), Counter[str]()
    assert any(sharded(name, case) for name in stored)
    for rank, one in enumerate(seen):
        assert one.units == units
        for name, (size, _) in stored.items():
            if not sharded(name, case):
                assert one.read[name] == size, "resident, so each rank has all"
        read.update({name: size for name, size in one.read.items() if sharded(name, case)})
        if dtype == torch.float32:
            assert one.losses == reference(case, rank).losses
    for name, size in read.items():
        whole, row = stored[name]
        coded = precision != "bf16" and name not in (EMBEDDING, HEAD)
        assert whole <= size < (MOST * whole if coded else whole + world * row), "cuts go through rows"
    assert set(read) == {name for name in stored if sharded(name, case)}
    most = {2: 1.2, 4: 1.6}[world] if precision != "bf16" else 1.01
    assert sum(read.values()) < most * sum(stored[name][0] for name in read)
