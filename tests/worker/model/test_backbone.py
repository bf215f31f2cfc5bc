"""Our block against transformers' own classes: every family, packed and ragged, logits and gradients; and what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from transformers import Gemma3TextConfig, GPT2Config, GPT2LMHeadModel, LlamaConfig, MistralConfig, PreTrainedConfig
from transformers.models.auto.modeling_auto import AutoModelForCausalLM

from contract.model_types import MODEL_TYPES
from tests.worker.model import tiny
from worker.model.arena import Arena
from worker.model.backbone import Backbone
from worker.model.base_weight_reader import HEAD
from worker.model.families import FAMILIES, UnsupportedModelError
from worker.model.flat_batch import FlatBatch, Segment
from worker.model.plain.trainer import Trainer

CONFIGS = tiny.configs()
_FACTORS = {"short_factor": [1.0] * 9, "long_factor": [2.0] * 9, "original_max_position_embeddings": 64, "factor": 4.0}
LONG = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 40.0},
    "full_attention": {"rope_type": "longrope", "rope_theta": 900.0} | _FACTORS,
}
LENGTHS = [23, 2, 9, 40, 17]
TOLERANCE = 1e-5


def _base_alone(name: str) -> tuple[Trainer, torch.nn.Module]:
    reference = tiny.model(CONFIGS[name])
    backbone = Backbone.of(reference)
    return Trainer(backbone, Arena(backbone.targets, 8)), reference


@pytest.mark.parametrize("name", CONFIGS)
def test_packed_logits_equal_transformers_row_by_row(name: str) -> None:
    trainer, reference = _base_alone(name)
    rows = tiny.examples(LENGTHS)
    ours = tiny.label_logits(trainer, [Segment(None, rows[:2]), Segment(None, rows[2:])])
    theirs = torch.cat(
        [reference(tiny.token_rows(row)).logits[0, torch.from_numpy(row.loss_mask).nonzero()[:, 0] - 1] for row in rows]
    )
    assert ours.shape == theirs.shape
    assert theirs.abs().max() > 1
    torch.testing.assert_close(ours, theirs, atol=TOLERANCE, rtol=TOLERANCE)


@pytest.mark.parametrize("name", CONFIGS)
def test_gradient_of_the_embedded_tokens_equals_transformers(name: str) -> None:
    trainer, reference = _base_alone(name)
    rows = tiny.examples(LENGTHS)
    batch = FlatBatch.of([Segment(None, rows)])
    backbone = trainer.backbone
    x_TK = backbone.embed(batch).requires_grad_()
    h_LK = backbone.final_norm(
        backbone.hidden(x_TK, batch, trainer.adapters(batch, trainer.arena.grad), trainer.arena.layout)[batch.label_indices]
    )
    h_LK.backward(backbone.label_loss(h_LK.detach(), batch.label_tokens, torch.ones(h_LK.shape[0])).dh_LK)
    assert x_TK.grad is not None
    for row, (start, stop) in zip(rows, batch.sequences(), strict=True):
        embedded = reference.get_input_embeddings()(tiny.token_rows(row)).requires_grad_()
        tiny.label_nll(reference(inputs_embeds=embedded).logits, row).backward()
        assert embedded.grad is not None
        expected = embedded.grad[0, : stop - start]
        torch.testing.assert_close(
            x_TK.grad[start:stop], expected, atol=TOLERANCE * float(expected.abs().max()), rtol=TOLERANCE
        )


def test_targets_are_every_linear_map_by_its_name_in_transformers() -> None:
    reference = tiny.model(CONFIGS["qwen3"])
    names = {n for n, m in reference.named_modules() if isinstance(m, torch.nn.Linear) and n != "lm_head"}
    targets = Backbone.of(reference).targets
    assert {target.name for target in targets} == names
    for target in targets:
        weight = reference.get_submodule(target.name).get_parameter("weight")
        assert (target.out_features, target.in_features) == tuple(weight.shape)


@pytest.mark.parametrize("name", ["llama", "qwen3", "gemma2", "gemma3", "phi3", "phi3_part"])
def test_a_saved_folder_loads_whole_or_in_shards(name: str, tmp_path: Path) -> None:
    reference = tiny.model(CONFIGS[name])
    reference.save_pretrained(tmp_path / "whole")
    reference.save_pretrained(tmp_path / "shards", max_shard_size="40KB")
    assert len(list((tmp_path / "shards").glob("*.safetensors"))) > 2
    rows = [Segment(None, tiny.examples([12, 30]))]
    expected = tiny.label_logits(Trainer(Backbone.of(reference), Arena(Backbone.of(reference).targets, 8)), rows)
    for folder in ("whole", "shards"):
        backbone = Backbone.load(tmp_path / folder)
        assert (backbone.head is backbone.embedding) == (name not in ("qwen3", "phi3_part"))
        assert torch.equal(tiny.label_logits(Trainer(backbone, Arena(backbone.targets, 8)), rows), expected)


def test_an_unknown_architecture_is_refused_with_what_works(tmp_path: Path) -> None:
    GPT2LMHeadModel(GPT2Config(n_layer=1, n_head=2, n_embd=8, vocab_size=16)).save_pretrained(tmp_path)
    with pytest.raises(UnsupportedModelError, match=rf"'gpt2' is not supported; what works: {', '.join(FAMILIES)}"):
        Backbone.load(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
        ({"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}}, "rope_type 'dynamic'"),
    ],
)
def test_a_switch_the_block_lacks_is_refused(change: dict[str, Any], message: str) -> None:
    _refused(LlamaConfig, change, message)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_activation": "silu"}, "hidden_activation 'silu' is not supported; what works: gelu_pytorch_tanh"),
        ({"use_bidirectional_attention": True}, "use_bidirectional_attention"),
    ],
)
def test_a_switch_that_gemma_lacks_is_refused(change: dict[str, Any], message: str) -> None:
    _refused(Gemma3TextConfig, {"head_dim": 4, **change}, message)


def test_biases_that_transformers_leaves_out_and_vllm_adds_are_refused() -> None:
    message = "attention_bias is not supported for model_type 'mistral'; what works: false"
    _refused(MistralConfig, {"attention_bias": True}, message)


def _refused(kind: type[PreTrainedConfig], change: dict[str, Any], message: str) -> None:
    config = kind(
        vocab_size=16,
        hidden_size=8,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        **change,
    )
    with pytest.raises(UnsupportedModelError, match=message):
        Backbone.of(tiny.model(config))


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 100.0}}, "config.json.*'factor'"),
        (
            "gemma3",
            {"rope_parameters": LONG},
            "rope_type 'longrope' is not supported; what works: default, linear, llama3, yarn$",
        ),
        ("llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 100.0, "factor": "2"}}, "say no angles"),
        ("llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 100.0, "factor": 0}}, "what works: a finite angle"),
        ("llama3_rope", {"rope_parameters": {**tiny.LLAMA3_ROPE, "partial_rotary_factor": 0.5}}, "every pair of a head's 14"),
        ("llama", {"num_attention_heads": 0}, "config.json.*ZeroDivisionError"),
        ("llama", {"rms_norm_eps": None}, "config.json.*'rms_norm_eps'"),
        ("llama", {"model_type": "never heard of"}, "config.json.*never heard of"),
        ("gemma3", {"layer_types": ["full_attention"]}, "config.json.*layer_types"),
        ("gemma3", {"layer_types": ["chunked_attention", "full_attention"]}, "'chunked_attention'"),
        ("qwen3", {"layer_types": ["chunked_attention", "full_attention"]}, "what works: sliding_attention, full_attention"),
        (
            "gemma2",
            {"attn_logit_softcapping": 0.0},
            "attn_logit_softcapping 0.0 is not .*a number above 0",
        ),
        ("gemma3", {"query_pre_attn_scalar": 0}, "query_pre_attn_scalar 0 is not supported"),
        ("mistral", {"sliding_window": 0}, "sliding_window 0 is not supported; what works: 1 or more"),
        ("qwen3", {"is_causal": False}, "is_causal false is not supported; what works: causal attention"),
        ("gemma2", {"attention_dropout": 0.1}, "attention_dropout 0.1 is not supported; what works: 0"),
        ("qwen2", {"num_key_value_heads": 4}, "num_key_value_heads 4 .*a divisor of num_attention_heads 6"),
        ("llama", {"num_key_value_heads": 12}, "num_key_value_heads 12 .*a divisor of num_attention_heads 6"),
    ],
)
def test_a_configuration_that_says_no_model_is_refused_in_words(
    name: str, change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    tiny.model(CONFIGS[name]).save_pretrained(tmp_path)
    said = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(said | change))
    with pytest.raises(UnsupportedModelError, match=f"(?s){message}"):
        Backbone.load(tmp_path)


def test_what_may_be_listed_is_what_can_be_trained_on() -> None:
    assert set(MODEL_TYPES) == set(FAMILIES)


def test_weights_that_are_missing_are_named_and_never_made_up(tmp_path: Path) -> None:
    reference = tiny.model(CONFIGS["qwen2"])
    state = {k: v for k, v in reference.state_dict().items() if "layers.1.mlp.up_proj" not in k and k != "lm_head.weight"}
    reference.save_pretrained(tmp_path, state_dict=state)
    with pytest.raises(UnsupportedModelError, match=r"layers\.1\.mlp\.up_proj"):
        Backbone.load(tmp_path)


def test_pickled_weights_are_not_opened(tmp_path: Path) -> None:
    reference = tiny.model(CONFIGS["llama"])
    reference.config.save_pretrained(tmp_path)
    torch.save(reference.state_dict(), tmp_path / "pytorch_model.bin")
    with pytest.raises(UnsupportedModelError, match="safetensors"):
        Backbone.load(tmp_path)


def test_weights_in_whole_numbers_are_refused_and_strange_ones_are_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    reference = tiny.model(CONFIGS["llama"])
    state = {name: tensor.clone() for name, tensor in reference.state_dict().items() if name != HEAD}
    bias = {"model.layers.0.self_attn.q_proj.bias": torch.ones(60)}
    reference.save_pretrained(tmp_path)
    save_file(state | bias, tmp_path / "model.safetensors")
    Backbone.load(tmp_path)
    assert "1 tensors are not of this family and change nothing: model.layers.0.self_attn.q_proj.bias" in caplog.text
    save_file(state | {"model.norm.weight": torch.ones(60, dtype=torch.int8)}, tmp_path / "model.safetensors")
    with pytest.raises(UnsupportedModelError, match=r"holds model\.norm\.weight as I8"):
        Backbone.load(tmp_path)


def test_a_head_beside_a_tied_embedding_is_refused_unless_it_is_the_same(tmp_path: Path) -> None:
    reference = tiny.model(CONFIGS["llama"])
    reference.save_pretrained(tmp_path)
    state = {name: tensor.clone() for name, tensor in reference.state_dict().items()}
    save_file(state, tmp_path / "model.safetensors", {"format": "pt"})
    backbone = Backbone.load(tmp_path)
    assert backbone.head is backbone.embedding
    state[HEAD][-1, -1] += 1
    save_file(state, tmp_path / "model.safetensors", {"format": "pt"})
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert not torch.equal(theirs.lm_head.weight, theirs.model.embed_tokens.weight), "transformers takes what the file holds"
    with pytest.raises(UnsupportedModelError, match=r"set its tie_word_embeddings to false, or take lm_head\.weight out"):
        Backbone.load(tmp_path)
