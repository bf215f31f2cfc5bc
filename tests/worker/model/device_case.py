"""Small models, adapters and rows for tests of the trainer on a GPU."""

import numpy as np
import torch
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    Olmo2Config,
    Olmo2ForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
    PreTrainedModel,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from worker.model.arena import Arena, Slot
from worker.model.backbone import Backbone
from worker.model.cuda.device_arena import DeviceArena
from worker.model.cuda.device_trainer import DeviceTrainer
from worker.model.example import Example
from worker.model.plain.trainer import Trainer

SIZES = {
    "hidden_size": 128,
    "intermediate_size": 192,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "vocab_size": 300,
    "max_position_embeddings": 512,
}
RANKS = (16, 24, 64, 8)


def llama() -> PreTrainedModel:
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**SIZES))


def qwen() -> PreTrainedModel:
    torch.manual_seed(0)
    return Qwen3ForCausalLM(Qwen3Config(**SIZES))


def gemma2() -> PreTrainedModel:
    """With heads as wide as Gemma's, and caps that bend."""
    torch.manual_seed(0)
    caps = {"attn_logit_softcapping": 5.0, "final_logit_softcapping": 4.0}
    sizes = SIZES | {"head_dim": 256, "num_attention_heads": 2, "num_key_value_heads": 1}
    return Gemma2ForCausalLM(Gemma2Config(**sizes, **caps, query_pre_attn_scalar=40, sliding_window=30, pad_token_id=0))


def gemma3() -> PreTrainedModel:
    torch.manual_seed(0)
    return Gemma3ForCausalLM(Gemma3TextConfig(**SIZES, query_pre_attn_scalar=40, sliding_window=30, pad_token_id=0))


def olmo2() -> PreTrainedModel:
    torch.manual_seed(0)
    sizes = {name: size for name, size in SIZES.items() if name != "head_dim"} | {"hidden_size": 256}
    return Olmo2ForCausalLM(Olmo2Config(**sizes, eos_token_id=1, pad_token_id=0))


def phi3() -> PreTrainedModel:
    """With heads of 96 of which three quarters turn, as Phi-3's and Phi-4-mini's."""
    torch.manual_seed(0)
    sizes = {name: size for name, size in SIZES.items() if name != "head_dim"} | {"hidden_size": 384}
    rope = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.75}
    return Phi3ForCausalLM(Phi3Config(**sizes, rope_parameters=rope, sliding_window=30, eos_token_id=1, pad_token_id=0))


def examples(seed: int, count: int = 2, longest: int = 150) -> list[Example]:
    rng = np.random.default_rng(seed)
    made = []
    for _ in range(count):
        length = int(rng.integers(20, longest))
        mask = np.arange(length) >= length // 3
        made.append(Example(rng.integers(0, 300, length, dtype=np.int32), mask))
    return made


def fill_slots(trainer: Trainer, ranks: tuple[int, ...] = RANKS) -> list[Slot]:
    """Adapters whose B is not zero, equal on every trainer."""
    slots = []
    for index, rank in enumerate(ranks):
        slot = trainer.arena.attach(rank, 2.0 * rank)
        trainer.init_adapter(slot, index)
        for a, b in trainer.arena.weights(slot).values():
            generator = torch.Generator().manual_seed(index)
            a.copy_(a.bfloat16())
            b.copy_((torch.randn(b.shape, generator=generator) * 0.02).bfloat16())
        slots.append(slot)
    return slots


def device_trainer(model: PreTrainedModel, rows: int = 128) -> DeviceTrainer:
    backbone = Backbone.of(model.to(torch.bfloat16), "cuda")
    return DeviceTrainer(backbone, DeviceArena(backbone.targets, rows, "cuda", torch.bfloat16))


def plain_trainer(model: PreTrainedModel, dtype: torch.dtype, device: str, rows: int = 128) -> Trainer:
    backbone = Backbone.of(model.to(torch.bfloat16).to(dtype), device)
    return Trainer(backbone, Arena(backbone.targets, rows, device, dtype))


def error(got: torch.Tensor, want: torch.Tensor) -> float:
    return ((got.double().cpu() - want.double().cpu()).norm() / want.double().norm()).item()
