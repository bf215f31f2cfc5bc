"""Bases whose files join matrices, at the service's door: uploads for them, and the rank that vLLM needs."""

import json
from pathlib import Path

import pytest

from contract.messages.peft_settings import PeftSettings
from service.adapters.adapter_readme import served, vllm_rank
from service.adapters.matrix_shapes import MatrixShapes
from service.fleet.base_models.model_config import ModelConfig
from service.http.problems import Invalid
from tests.service.adapters.adapter_uploads import BASE, CONFIG
from tests.worker.model import tiny

SAID = {"model_type": "phi3", "architectures": ["Phi3ForCausalLM"], "max_position_embeddings": 131072}


def test_adapters_from_elsewhere_are_refused_in_words() -> None:
    with pytest.raises(Invalid) as refused:
        MatrixShapes.read(json.dumps(BASE | {"model_type": "phi3"}).encode(), "base_model")
    (error,) = refused.value.errors
    assert (error.field, error.code) == ("base_model", "joined_matrices")
    assert error.message.startswith("holds qkv_proj and gate_up_proj, whose parts have adapters of their own here")


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
