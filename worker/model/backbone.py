"""Backbone: the frozen base model, read through transformers and run by our own block. Knows no jobs, no loss and no files'
meaning beyond what transformers reads.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from grouped_lora import Adapters
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from worker.model.attention import Axis, causal_mask
from worker.model.batch import FlatBatch
from worker.model.block import BlockShape, BlockWeights, run_block
from worker.model.layout import GROUPS, Layout, Target
from worker.model.norm import rms_norm
from worker.model.rotary import RotaryTable

FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
STATIC_ROPES = ("default", "linear", "llama3", "yarn")


class UnsupportedModelError(Exception):
    """The base cannot be run here; the message says what can."""


@dataclass(frozen=True)
class Backbone:
    """embedding and head are [V, K] (the same tensor where tied); `targets` are the matrices that adapters change."""

    family: str
    embedding: Tensor
    layers: tuple[BlockWeights, ...]
    norm: Tensor
    head: Tensor
    shape: BlockShape
    rotary: RotaryTable
    max_positions: int
    targets: tuple[Target, ...]

    @property
    def device(self) -> torch.device:
        return self.embedding.device

    @classmethod
    def load(cls, source: Path | str, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32) -> "Backbone":
        """Read a model folder (safetensors only, no remote code, no network). Raises UnsupportedModelError."""
        if not any(Path(source).glob("*.safetensors")):
            raise UnsupportedModelError(
                f"{source} is no model folder: it holds no *.safetensors, the only weights that are read"
            )
        config = AutoConfig.from_pretrained(source, trust_remote_code=False)
        _check(config)
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            source, config=config, dtype=dtype, use_safetensors=True, trust_remote_code=False, output_loading_info=True
        )
        model, found = loaded
        lacking = sorted(found["missing_keys"]) + sorted(str(key) for key in found["mismatched_keys"])
        if lacking:
            raise UnsupportedModelError(f"the weights in {source} lack, or have in another shape: {', '.join(lacking[:8])}")
        return cls.of(model, device)

    @classmethod
    def of(cls, model: PreTrainedModel, device: torch.device | str = "cpu") -> "Backbone":
        """Take over the weights of a transformers model of a known family."""
        config = model.config
        _check(config)
        inner = model.get_submodule("model")
        layers = inner.get_submodule("layers")
        rotary: Any = inner.get_submodule("rotary_emb")
        embedding = _frozen(inner.get_submodule("embed_tokens"), device)
        tied = model.get_submodule("lm_head").weight is inner.get_submodule("embed_tokens").weight
        return cls(
            family=config.model_type,
            embedding=embedding,
            layers=tuple(_block(layer, _window(config, place), device) for place, layer in enumerate(layers.children())),
            norm=_frozen(inner.get_submodule("norm"), device),
            head=embedding if tied else _frozen(model.get_submodule("lm_head"), device),
            shape=BlockShape(config.num_attention_heads, config.num_key_value_heads, _head_size(config), config.rms_norm_eps),
            rotary=RotaryTable(rotary.inv_freq.to(device), rotary.attention_scaling, embedding.dtype),
            max_positions=config.max_position_embeddings,
            targets=_targets(layers),
        )

    def tensors(self) -> Iterator[Tensor]:
        """Every frozen tensor."""
        yield from (self.embedding, self.norm, self.head)
        for weights in self.layers:
            yield from (value for value in vars(weights).values() if isinstance(value, Tensor))

    def embed(self, batch: FlatBatch) -> Tensor:
        """The first layer's input, [T, K]."""
        return self.embedding[batch.tokens]

    def hidden(self, x_TK: Tensor, batch: FlatBatch, adapters: Adapters, layout: Layout) -> Tensor:
        """What the final norm reads, [T, K], from the first layer's input."""
        cos, sin = self.rotary.table(max(1, batch.longest))
        cos, sin = cos[batch.positions].unsqueeze(1), sin[batch.positions].unsqueeze(1)
        axis = Axis(batch.bounds, cos, sin, causal_mask(batch.longest, x_TK))
        for weights, groups in zip(self.layers, layout.layers, strict=True):
            x_TK = run_block(x_TK, weights, self.shape, axis, batch.pieces, adapters, groups)
        return x_TK

    def final_norm(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.norm, self.shape.eps)


def _check(config: PreTrainedConfig) -> None:
    works = f"; what works: {', '.join(FAMILIES)}"
    if config.model_type not in FAMILIES:
        raise UnsupportedModelError(f"model_type '{config.model_type}' is not supported{works}")
    if config.hidden_act != "silu":
        raise UnsupportedModelError(f"hidden_act '{config.hidden_act}' is not supported; what works: silu")
    rope = config.rope_parameters["rope_type"]
    if rope not in STATIC_ROPES:
        raise UnsupportedModelError(f"rope_type '{rope}' is not supported; what works: {', '.join(STATIC_ROPES)}")
    if getattr(config, "quantization_config", None) is not None:
        raise UnsupportedModelError("quantised checkpoints are not supported; use the original weights")


def _head_size(config: PreTrainedConfig) -> int:
    size: int | None = getattr(config, "head_dim", None)
    return size or config.hidden_size // config.num_attention_heads


def _window(config: PreTrainedConfig, layer: int) -> int | None:
    """Tokens a layer may look back over, itself included; None: all. Qwen says it per layer, Mistral for all layers."""
    if config.model_type == "llama":
        return None
    window: int | None = config.sliding_window
    if config.model_type == "mistral":
        return window
    return window if config.layer_types[layer] == "sliding_attention" else None


def _frozen(module: nn.Module, device: torch.device | str) -> Tensor:
    return module.get_parameter("weight").detach().to(device)


def _joined(modules: list[nn.Module], device: torch.device | str) -> tuple[Tensor, Tensor | None]:
    """Weights below each other, and biases likewise (all have one or none has)."""
    weight = torch.cat([module.get_parameter("weight").detach() for module in modules]).to(device)
    if getattr(modules[0], "bias", None) is None:
        return weight, None
    return weight, torch.cat([module.get_parameter("bias").detach() for module in modules]).to(device)


def _block(layer: nn.Module, window: int | None, device: torch.device | str) -> BlockWeights:
    attention, mlp = layer.get_submodule("self_attn"), layer.get_submodule("mlp")
    parents = {"qkv": attention, "o": attention, "gate_up": mlp, "down": mlp}
    joined = {name: _joined([parents[name].get_submodule(kind) for kind in kinds], device) for name, kinds in GROUPS.items()}
    has_head_norms = hasattr(attention, "q_norm")
    return BlockWeights(
        norm_attention=_frozen(layer.get_submodule("input_layernorm"), device),
        w_qkv=joined["qkv"][0],
        b_qkv=joined["qkv"][1],
        q_norm=_frozen(attention.get_submodule("q_norm"), device) if has_head_norms else None,
        k_norm=_frozen(attention.get_submodule("k_norm"), device) if has_head_norms else None,
        w_o=joined["o"][0],
        b_o=joined["o"][1],
        norm_mlp=_frozen(layer.get_submodule("post_attention_layernorm"), device),
        w_gate_up=joined["gate_up"][0],
        b_gate_up=joined["gate_up"][1],
        w_down=joined["down"][0],
        b_down=joined["down"][1],
        window=window,
    )


def _targets(layers: nn.Module) -> tuple[Target, ...]:
    """Every linear map of every layer, in the order a row holds them."""
    found = []
    for place, layer in enumerate(layers.children()):
        paths = {name.rsplit(".", 1)[-1]: name for name, module in layer.named_modules() if isinstance(module, nn.Linear)}
        for kind in (kind for kinds in GROUPS.values() for kind in kinds):
            weight = layer.get_submodule(paths[kind]).get_parameter("weight")
            name = f"model.layers.{place}.{paths[kind]}"
            found.append(Target(name, place, kind, in_features=weight.shape[1], out_features=weight.shape[0]))
    return tuple(found)
