"""Adapters of a base whose files join matrices: out as PEFT knows them, and back."""

import json
from pathlib import Path

import peft
import pytest
import torch

from contract.job_config import MODULES, JobConfig
from tests.worker.model import tiny
from worker.adapters.joined_adapters import rank_factor
from worker.adapters.peft_export import export_peft
from worker.adapters.warm_start import read_peft
from worker.model.arena import Arena
from worker.model.backbone import Backbone, targets_of

CONFIG = tiny.configs()["phi3_part"]
RANK = 5


def _exported(folder: Path, modules: tuple[str, ...]) -> tuple[Arena, torch.Tensor, dict[str, Path]]:
    arena = Arena(Backbone.of(tiny.model(CONFIG)).targets, RANK)
    config = JobConfig.model_validate(
        {"learning_rate": 1, "rank": RANK, "alpha": 7.5, "batch_size": 1, "seed": 0, "target_modules": modules}
    )
    rows = torch.randn(RANK, arena.layout.width)
    for target, factors in zip(arena.layout.targets, arena.layout.split(rows).values(), strict=True):
        if target.module not in modules:
            for factor in factors:
                factor.zero_()
    paths = export_peft(folder, arena.layout.targets, arena.layout.split(rows), config=config, base_model="team/base")
    return arena, rows, {path.name: path for path in paths}


@pytest.mark.parametrize(
    ("modules", "times"),
    [(MODULES, 3), (("k_proj", "down_proj"), 1), (("v_proj", "gate_proj", "up_proj"), 2), (("o_proj",), 1)],
)
def test_an_export_comes_back_as_it_was(modules: tuple[str, ...], times: int, tmp_path: Path) -> None:
    arena, rows, files = _exported(tmp_path, modules)
    start = read_peft(files, arena.layout)
    assert (start.rank, start.scale) == (RANK, 1.5)
    assert json.loads(files["adapter_config.json"].read_text())["r"] == RANK * times
    for target, found, expected in zip(
        arena.layout.targets, arena.layout.split(start.weights).values(), arena.layout.split(rows).values(), strict=True
    ):
        if target.module in modules:
            assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
        else:
            assert not (found[1] @ found[0]).any()


def test_ranks_of_an_export() -> None:
    def factor(name: str, modules: tuple[str, ...]) -> int:
        return rank_factor(target for target in targets_of(tiny.configs()[name]) if target.module in modules)

    assert factor("phi3", MODULES) == 3
    assert factor("phi3", ("q_proj", "gate_proj", "up_proj")) == 2
    assert factor("phi3", ("o_proj", "down_proj")) == factor("llama", MODULES) == 1


def test_an_adapter_that_peft_made_of_the_joined_matrices_does_the_same_here(tmp_path: Path) -> None:
    """Its parts share A, which no job of Motet's does."""
    torch.manual_seed(3)
    asked = peft.LoraConfig(r=RANK, lora_alpha=10, target_modules=["qkv_proj", "down_proj"], init_lora_weights=False)
    theirs = peft.get_peft_model(tiny.model(CONFIG), asked)
    theirs.save_pretrained(tmp_path)
    layout = Arena(Backbone.of(tiny.model(CONFIG)).targets, RANK).layout
    start = read_peft({path.name: path for path in tmp_path.iterdir()}, layout)
    assert start.rank == RANK
    assert start.modules == ("q_proj", "k_proj", "v_proj", "down_proj")
    merged = theirs.merge_and_unload().state_dict()
    plain = tiny.model(CONFIG).state_dict()
    for target in layout.targets:
        if target.module in start.modules:
            a, b = layout.split(start.weights)[target.name]
            places = slice(None) if target.stored is None else target.stored.places(target.out_features)
            name = f"{target.stored_name}.weight"
            change = merged[name][places] - plain[name][places]
            torch.testing.assert_close(start.scale * b @ a, change, rtol=0, atol=1e-5)
