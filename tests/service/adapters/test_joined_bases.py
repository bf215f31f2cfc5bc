"""Bases whose files join matrices, at the service's door: uploads for them, and the rank that vLLM needs."""

import json
from pathlib import Path

import peft
import pytest
from safetensors.torch import load_file

from contract.messages.peft_settings import PeftSettings
from service.adapters.adapter_intake import AdapterInvalid, Tensor, check_tensors
from service.adapters.adapter_readme import served, vllm_rank
from service.adapters.matrix_shapes import MatrixShapes
from service.fleet.base_models.model_config import ModelConfig
from service.http.problems import Invalid
from tests.service.adapters.adapter_uploads import BASE, CONFIG
from tests.worker.model import tiny

SAID = {"model_type": "phi3", "architectures": ["Phi3ForCausalLM"], "max_position_embeddings": 131072}


@pytest.mark.parametrize("modules", [["qkv_proj", "down_proj"], ["o_proj", "gate_up_proj"]])
def test_an_adapter_that_peft_made_is_taken_for_the_parts(tmp_path: Path, modules: list[str]) -> None:
    config = tiny.configs()["phi3_part"]
    peft.get_peft_model(tiny.model(config), peft.LoraConfig(r=4, target_modules=modules)).save_pretrained(tmp_path)
    held = load_file(tmp_path / "adapter_model.safetensors")
    tensors = [Tensor(name, "F32", (one.shape[0], one.shape[1]), 0) for name, one in held.items()]
    settings = PeftSettings.read((tmp_path / "adapter_config.json").read_bytes())
    shapes = MatrixShapes.read(json.dumps(config.to_dict()).encode(), "base_model")
    own = {"qkv_proj": ["q_proj", "k_proj", "v_proj"], "gate_up_proj": ["gate_proj", "up_proj"]}
    assert check_tensors(tensors, settings, shapes, "phi") == [part for name in modules for part in own.get(name, [name])]
    with pytest.raises(AdapterInvalid) as refused:
        check_tensors(tensors[1:], settings, shapes, "phi")
    assert refused.value.errors[0].message.startswith("lacks base_model.model.model.layers.0.")


def test_an_adapter_of_a_part_alone_is_none_of_the_base() -> None:
    shapes = MatrixShapes.read(json.dumps(BASE | {"model_type": "phi3"}).encode(), "base_model")
    name = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"
    with pytest.raises(AdapterInvalid) as refused:
        check_tensors([Tensor(name, "F32", (2, 12), 0)], PeftSettings(rank=2, alpha=4), shapes, "phi")
    assert f"holds {name}, which is no LoRA matrix of phi" in refused.value.errors[0].message.replace("'", "")


@pytest.mark.parametrize(
    ("said", "longest"),
    [
        ({}, 131072),
        ({"rope_scaling": None, "original_max_position_embeddings": 4096}, 131072),
        ({"rope_scaling": {"type": "longrope"}, "original_max_position_embeddings": 4096}, 4096),
        ({"rope_scaling": {"type": "su"}, "original_max_position_embeddings": 4096}, 4096),
        ({"rope_parameters": {"rope_type": "longrope", "original_max_position_embeddings": 8192}}, 8192),
    ],
)
def test_longrope_goes_as_far_as_the_base_was_trained_at(said: dict[str, object], longest: int) -> None:
    assert ModelConfig.read(json.dumps(SAID | said).encode(), "source").max_position == longest


def test_longrope_that_does_not_say_how_far_is_refused() -> None:
    with pytest.raises(Invalid, match="original_max_position_embeddings"):
        ModelConfig.read(json.dumps(SAID | {"rope_scaling": {"type": "longrope"}}).encode(), "source")


def test_worker_and_service_read_the_same_length(tmp_path: Path) -> None:
    tiny.configs()["phi3_part"].save_pretrained(tmp_path)
    said = json.loads((tmp_path / "config.json").read_text()) | {"architectures": ["Phi3ForCausalLM"]}
    assert ModelConfig.read(json.dumps(said).encode(), "source").max_position == 128


def test_a_joined_adapter_may_have_three_times_the_rank_of_a_job() -> None:
    whole = CONFIG | {"r": 768, "target_modules": ["qkv_proj", "o_proj"]}
    assert PeftSettings.read(json.dumps(whole).encode()).rank == 768
    with pytest.raises(ValueError, match="from 1 to 256"):
        PeftSettings.read(json.dumps(CONFIG | {"r": 257}).encode())
    with pytest.raises(ValueError, match="from 1 to 512"):
        PeftSettings.read(json.dumps(whole | {"r": 513, "target_modules": ["gate_up_proj"]}).encode())


def test_the_readme_says_which_rank_vllm_needs() -> None:
    assert [vllm_rank(rank) for rank in (1, 48, 384)] == [8, 64, 512]
    assert "--max-lora-rank 64 " in served("adapter_x", 48)
    assert served("adapter_x", 513).startswith("vLLM serves no adapter of rank 513, only up to 512;")
