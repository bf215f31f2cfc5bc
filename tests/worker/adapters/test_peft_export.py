"""An exported adapter, loaded by PEFT on the plain base: the same logits, for every family and odd ranks."""

import json
from pathlib import Path

import peft
import pytest
import torch
from safetensors.torch import load_file

from contract.job_config import JobConfig
from tests.worker.model import tiny
from worker.adapters.peft_export import export_peft
from worker.model.arena import Arena
from worker.model.backbone import Backbone
from worker.model.flat_batch import Segment
from worker.model.plain.trainer import Trainer
from worker.model.row_optimizer import RowUpdate

CONFIGS = tiny.configs()


def config(rank: int, alpha: float, **changes: object) -> JobConfig:
    return JobConfig.model_validate(
        {"learning_rate": 1e-3, "rank": rank, "alpha": alpha, "batch_size": 1, "seed": 0, **changes}
    )


def _exported(name: str, rank: int, alpha: float, folder: Path) -> tuple[Trainer, Segment]:
    backbone = Backbone.of(tiny.model(CONFIGS[name]))
    trainer = Trainer(backbone, Arena(backbone.targets, 64))
    trainer.arena.attach(8, 8)  # so that the adapter does not begin at row 0
    segment = Segment(trainer.arena.attach(rank, alpha), tiny.examples([23, 2, 40]))
    tiny.randomise(trainer, [segment])
    assert segment.slot is not None
    export_peft(
        folder, backbone.targets, trainer.arena.weights(segment.slot), config=config(rank, alpha), base_model="team/base"
    )
    return trainer, segment


@pytest.mark.parametrize("rank", [1, 8, 24])
@pytest.mark.parametrize(
    "name", ["llama", "llama_biases", "qwen2", "qwen3", "mistral", "gemma2", "gemma3", "olmo2", "phi3", "phi3_part"]
)
def test_peft_gives_the_executors_logits(name: str, rank: int, tmp_path: Path) -> None:
    trainer, segment = _exported(name, rank, 1.5 * rank, tmp_path)
    loaded = peft.PeftModel.from_pretrained(tiny.model(CONFIGS[name]), tmp_path)
    plain = tiny.model(CONFIGS[name])
    ours = tiny.label_logits(trainer, [segment])
    picked = [(tiny.token_rows(row), torch.from_numpy(row.loss_mask).nonzero()[:, 0] - 1) for row in segment.examples]
    with torch.no_grad():
        theirs = torch.cat([loaded(tokens).logits[0, places] for tokens, places in picked])
        base = torch.cat([plain(tokens).logits[0, places] for tokens, places in picked])
    assert (theirs - base).abs().max() > 0.1
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-4)


def test_the_folder_says_what_vllm_and_peft_ask_for(tmp_path: Path) -> None:
    trainer, segment = _exported("qwen3", 5, 7.5, tmp_path / "new" / "folder")
    folder = tmp_path / "new" / "folder"
    assert sorted(path.name for path in folder.iterdir()) == ["adapter_config.json", "adapter_model.safetensors"]
    config = json.loads((folder / "adapter_config.json").read_text())
    assert {key: config[key] for key in ("peft_type", "task_type", "bias", "r", "lora_alpha", "base_model_name_or_path")} == {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "bias": "none",
        "r": 5,
        "lora_alpha": 7.5,
        "base_model_name_or_path": "team/base",
    }
    assert set(config["target_modules"]) == {target.module for target in trainer.backbone.targets}
    assert not set(config) - set(peft.LoraConfig().to_dict())
    tensors = load_file(folder / "adapter_model.safetensors")
    assert len(tensors) == 2 * len(trainer.backbone.targets)
    assert segment.slot is not None
    a, b = trainer.arena.weights(segment.slot)["model.layers.1.mlp.down_proj"]
    assert torch.equal(tensors["base_model.model.model.layers.1.mlp.down_proj.lora_A.weight"], a)
    assert torch.equal(tensors["base_model.model.model.layers.1.mlp.down_proj.lora_B.weight"], b)


@pytest.mark.parametrize("changes", [{"rslora": True}, {"target_modules": ["v_proj", "q_proj", "down_proj"], "dropout": 0.25}])
def test_peft_gives_the_logits_of_rank_stabilised_and_partial_adapters(changes: dict, tmp_path: Path) -> None:
    asked = config(6, 9.0, **changes)
    backbone = Backbone.of(tiny.model(CONFIGS["llama"]))
    trainer = Trainer(backbone, Arena(backbone.targets, 8))
    segment = Segment(trainer.arena.attach(asked.rank, asked.plain_alpha), tiny.examples([23, 9]))
    assert segment.slot is not None
    trainer.init_adapter(segment.slot, 3, asked.target_modules)
    for step in range(1, 4):
        trainer.train([segment])
        trainer.update([RowUpdate(segment.slot, 0.05, 0.01, step, 1.0)])
    weights = trainer.arena.weights(segment.slot)
    idle = [weights[t.name] for t in backbone.targets if t.module not in asked.target_modules]
    assert all(not a.any() and not b.any() for a, b in idle), "what is no target stays without an adapter"
    export_peft(tmp_path, backbone.targets, weights, config=asked, base_model="b")
    said = json.loads((tmp_path / "adapter_config.json").read_text())
    assert not said["use_rslora"], "SGLang ignores it"
    assert said["target_modules"] == sorted(asked.target_modules)
    assert said["lora_dropout"] == asked.dropout
    assert said["lora_alpha"] / said["r"] == pytest.approx(asked.scale)
    loaded = peft.PeftModel.from_pretrained(tiny.model(CONFIGS["llama"]), tmp_path)
    with torch.no_grad():
        theirs = torch.cat(
            [loaded(tiny.token_rows(r)).logits[0, torch.from_numpy(r.loss_mask).nonzero()[:, 0] - 1] for r in segment.examples]
        )
    torch.testing.assert_close(tiny.label_logits(trainer, [segment]), theirs, rtol=0, atol=1e-4)
    trainer.arena.detach(segment.slot)


def test_missing_or_misshapen_weights_are_named(tmp_path: Path) -> None:
    backbone = Backbone.of(tiny.model(CONFIGS["llama"]))
    arena = Arena(backbone.targets, 8)
    weights = arena.weights(arena.attach(4, 4))
    with pytest.raises(
        ValueError, match=r"A of model\.layers\.0\.self_attn\.q_proj has shape \(4, 60\); it should have \(5, 60\)"
    ):
        export_peft(tmp_path, backbone.targets, weights, config=config(5, 4), base_model="b")
    del weights["model.layers.1.mlp.up_proj"]
    with pytest.raises(ValueError, match=r"no weights for model\.layers\.1\.mlp\.up_proj"):
        export_peft(tmp_path, backbone.targets, weights, config=config(4, 4), base_model="b")
