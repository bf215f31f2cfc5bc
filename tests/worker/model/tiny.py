"""Small random models of every family with shapes that divide nothing, and small random batches. For tests alone."""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import (
    Gemma2Config,
    Gemma3TextConfig,
    LlamaConfig,
    MistralConfig,
    Olmo2Config,
    Phi3Config,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
)
from transformers.models.auto.modeling_auto import AutoModelForCausalLM

from worker.model.backbone import Backbone
from worker.model.example import Example
from worker.model.flat_batch import FlatBatch, Segment
from worker.model.plain.lm_head import softcapped
from worker.model.plain.trainer import Trainer

VOCAB = 131
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}

GEMMA3_ROPE = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 40.0},
    "full_attention": {"rope_type": "linear", "rope_theta": 900.0, "factor": 3.0},
}

PHI3_ROPE = {
    "rope_type": "longrope",
    "rope_theta": 70.0,
    "partial_rotary_factor": 0.6,
    "short_factor": [1.0, 1.3, 2.1],
    "long_factor": [2.0, 3.0, 4.0],
    "original_max_position_embeddings": 128,
}


def configs() -> dict[str, PreTrainedConfig]:
    """One or more configurations of every family; each turns on a switch of the block."""
    odd: dict[str, Any] = {
        "vocab_size": VOCAB,
        "hidden_size": 60,
        "num_hidden_layers": 2,
        "intermediate_size": 77,
        "max_position_embeddings": 256,
    }
    gqa: dict[str, Any] = {**odd, "num_attention_heads": 6, "num_key_value_heads": 2}
    ends: dict[str, Any] = {"eos_token_id": 1, "pad_token_id": 0}  # its own are beyond this vocabulary
    return {
        "llama": LlamaConfig(**odd, num_attention_heads=6, num_key_value_heads=6, tie_word_embeddings=True),
        "llama3_rope": LlamaConfig(**gqa, head_dim=14, rope_parameters=LLAMA3_ROPE),
        "llama_biases": LlamaConfig(**gqa, head_dim=8, attention_bias=True, mlp_bias=True),
        "qwen2": Qwen2Config(**gqa, tie_word_embeddings=True, attention_bias=True),  # a field that it does not read
        "qwen2_window": Qwen2Config(**gqa, use_sliding_window=True, sliding_window=5, max_window_layers=1),
        "qwen3": Qwen3Config(**gqa, head_dim=18, mlp_bias=True),  # as above
        "mistral": MistralConfig(**gqa, head_dim=16, sliding_window=5),
        "mistral_full": MistralConfig(**gqa, head_dim=16, sliding_window=None),
        "gemma2": Gemma2Config(
            **gqa,
            head_dim=14,
            query_pre_attn_scalar=23,
            sliding_window=5,
            attn_logit_softcapping=3.0,
            final_logit_softcapping=6.0,
        ),
        "gemma2_uncapped": Gemma2Config(
            **gqa, head_dim=14, attn_logit_softcapping=None, final_logit_softcapping=None, tie_word_embeddings=False
        ),
        "gemma3": Gemma3TextConfig(
            **gqa,
            head_dim=18,
            query_pre_attn_scalar=31,
            sliding_window=5,
            layer_types=["sliding_attention", "full_attention"],
            rope_parameters=GEMMA3_ROPE,
        ),
        "olmo2": Olmo2Config(**gqa, **ends),
        "olmo2_biases": Olmo2Config(**odd, **ends, num_attention_heads=6, num_key_value_heads=6, attention_bias=True),
        "phi3": Phi3Config(**gqa, **ends, sliding_window=5, tie_word_embeddings=True),
        "phi3_part": Phi3Config(**gqa, **ends, rope_parameters=PHI3_ROPE, original_max_position_embeddings=128),
    }


def model(config: PreTrainedConfig, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """A model with weights large enough that every path matters: norms and biases away from their resting values."""
    torch.manual_seed(7)
    made = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for name, weight in made.named_parameters():
            if "norm" in name:
                weight.copy_(1 + 0.3 * torch.randn_like(weight))
            elif weight.dim() == 1:
                weight.copy_(0.3 * torch.randn_like(weight))
            else:
                weight.copy_(torch.randn_like(weight) * (1.2 / weight.shape[1] ** 0.5))
    for weight in made.parameters():
        weight.requires_grad_(False)
    return made.to(dtype)


def examples(lengths: list[int], seed: int = 0, vocab: int = VOCAB) -> list[Example]:
    """Rows of these token counts; the second half of each (at least one token) are labels."""
    rng = np.random.default_rng(seed)
    made = []
    for length in lengths:
        mask = np.arange(length) >= max(1, length // 2)
        made.append(Example(rng.integers(0, vocab, length).astype(np.int32), mask))
    return made


def randomise(trainer: Trainer, segments: list[Segment], seed: int = 1, size: float = 0.2) -> None:
    """Give every adapter both factors, so that all gradients are alive."""
    for place, segment in enumerate(segments):
        if segment.slot is not None:
            generator = torch.Generator().manual_seed(seed + place)
            rows = trainer.arena.master[segment.slot.used]
            for target, (a, b) in trainer.arena.layout.split(rows).items():
                assert target
                for factor in (a, b):
                    factor.copy_(size * torch.randn(factor.shape, generator=generator))


def token_rows(example: Example) -> Tensor:
    """The example's tokens as transformers wants them, int64 [1, t]."""
    return torch.from_numpy(example.tokens.astype(np.int64))[None]


def label_nll(logits: Tensor, example: Example) -> Tensor:
    """Sum of -log p over the labels, from logits [1, t, V] of a model that saw the whole row."""
    picked = torch.from_numpy(np.flatnonzero(example.loss_mask))
    labels = token_rows(example)[0, picked]
    return nn.functional.cross_entropy(logits[0, picked - 1], labels, reduction="sum")


def label_logits(trainer: Trainer, segments: list[Segment]) -> Tensor:
    """Our logits of every label of a batch, [L, V]."""
    batch = FlatBatch.of(segments)
    backbone: Backbone = trainer.backbone
    with torch.no_grad():
        hidden = backbone.hidden(backbone.embed(batch), batch, trainer.adapters(batch, None), trainer.arena.layout)
        return softcapped(backbone.final_norm(hidden[batch.label_indices]) @ backbone.head.t(), backbone.logit_cap)
