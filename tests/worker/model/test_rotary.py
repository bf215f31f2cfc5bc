"""Rotary tables against transformers' own, kind by kind, as far as rows of thousands of tokens need them."""

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, PreTrainedConfig
from transformers.models.gemma3.modeling_gemma3 import Gemma3RotaryEmbedding
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding
from transformers.models.phi3.modeling_phi3 import Phi3RotaryEmbedding

from tests.worker.model import tiny
from worker.model.families import UnsupportedModelError, family_of, head_size, longest_row, turned_size
from worker.model.plain.rotary import TABLE_STEP, RotaryTable

LONG = 2 * TABLE_STEP + 100
YARN = {"rope_type": "yarn", "rope_theta": 500.0, "factor": 4.0, "original_max_position_embeddings": 1024}
KINDS: dict[str, dict[str, Any]] = {
    "default": {"rope_type": "default", "rope_theta": 500.0},
    "linear": {"rope_type": "linear", "rope_theta": 500.0, "factor": 3.0},
    "llama3": tiny.LLAMA3_ROPE,
    "yarn": YARN,
    "yarn of DeepSeek": YARN | {"mscale": 0.7, "mscale_all_dim": 1.3, "beta_fast": 20.0, "truncate": False},
}


def made(config: PreTrainedConfig, kind: str = "", dtype: torch.dtype = torch.float32) -> RotaryTable:
    return RotaryTable.of(config, head_size(config), kind, torch.empty(0, dtype=dtype), turned_size(config))


def same(found: tuple[Tensor, Tensor], theirs: tuple[Tensor, Tensor]) -> None:
    for ours, whole in zip(found, theirs, strict=True):
        half = whole[0, :, : whole.shape[-1] // 2]
        torch.testing.assert_close(ours[:, : half.shape[1]], half)


@pytest.mark.parametrize("kind", KINDS)
def test_every_position_has_the_angles_of_transformers(kind: str) -> None:
    config = LlamaConfig(hidden_size=84, num_attention_heads=6, rope_parameters=KINDS[kind], max_position_embeddings=4096)
    places = torch.arange(LONG)[None]
    same(made(config).table(LONG), LlamaRotaryEmbedding(config)(torch.empty(0), places))


@pytest.mark.parametrize("kind", ["sliding_attention", "full_attention"])
def test_layers_of_each_kind_have_their_own(kind: str) -> None:
    config, places = tiny.configs()["gemma3"], torch.arange(LONG)[None]
    same(made(config, kind).table(LONG), Gemma3RotaryEmbedding(config)(torch.empty(0), places, kind))


def test_what_does_not_turn_keeps_its_values_at_every_position() -> None:
    config = tiny.configs()["phi3_part"]
    cos, sin = made(config).table(LONG)
    same((cos[:128], sin[:128]), Phi3RotaryEmbedding(config)(torch.empty(0), torch.arange(128)[None]))
    turned = turned_size(config) // 2
    assert cos.shape == (LONG, head_size(config) // 2)
    assert (cos[:, turned:] == 1).all()
    assert not sin[:, turned:].any()


def test_a_table_that_grows_has_the_bits_of_one_made_at_once_and_is_as_long_as_asked() -> None:
    config = LlamaConfig(hidden_size=84, num_attention_heads=6, rope_parameters=YARN)
    grown, exact = made(config, dtype=torch.bfloat16), made(config).table(LONG)
    for positions in (3, TABLE_STEP, TABLE_STEP + 1, LONG):
        for ours, whole in zip(grown.table(positions), exact, strict=True):
            assert torch.equal(ours, whole[:positions].bfloat16()), "rounded once, at the end"


@pytest.mark.parametrize("kind", ["sliding_attention", "full_attention"])
def test_the_kind_of_any_layer_may_be_one_that_is_refused(kind: str) -> None:
    config = tiny.configs()["gemma3"]
    config.rope_parameters = {**tiny.GEMMA3_ROPE, kind: {"rope_type": "dynamic", "rope_theta": 40.0, "factor": 2.0}}
    with pytest.raises(UnsupportedModelError, match="rope_type 'dynamic' is not supported"):
        family_of(config)


@pytest.mark.parametrize("part", [0, 0.1, 0.5, 1.6, "0.4"])
def test_a_part_of_a_head_that_cannot_turn_is_refused(part: Any) -> None:
    """Of ten numbers: one and five do not turn in pairs, and sixteen are not there."""
    config = tiny.configs()["phi3"]
    config.rope_parameters = {"rope_type": "default", "rope_theta": 40.0, "partial_rotary_factor": part}
    with pytest.raises(UnsupportedModelError, match=rf"partial_rotary_factor {part} .*a head's 10 numbers that is even"):
        turned_size(config)


def test_a_head_of_an_odd_size_is_refused_where_a_part_turns() -> None:
    config = tiny.configs()["phi3"]
    config.head_dim = 15
    config.rope_parameters = {"rope_type": "default", "rope_theta": 40.0, "partial_rotary_factor": 0.4}
    with pytest.raises(UnsupportedModelError, match=r"partial_rotary_factor 0.4 .*a head's 15 numbers"):
        turned_size(config)


@pytest.mark.parametrize("trained", [0, None, "128"])
def test_longrope_says_how_far_it_was_trained_at(trained: Any) -> None:
    config = tiny.configs()["phi3_part"]
    config.rope_parameters = tiny.PHI3_ROPE | {"original_max_position_embeddings": trained}
    with pytest.raises(UnsupportedModelError, match=f"original_max_position_embeddings {trained} is not supported"):
        longest_row(config)


def test_longrope_goes_no_further_than_a_base_goes_at_all() -> None:
    config = tiny.configs()["phi3_part"]
    config.max_position_embeddings = 100
    assert longest_row(config) == 100
