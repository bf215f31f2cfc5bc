"""Backbone: the frozen base model, read through transformers and run by our own block. Knows no jobs, no loss and no files'
meaning beyond what transformers reads.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from grouped_lora import Adapters
from grouped_lora.frozen import Frozen
from grouped_lora.nf4 import Nf4Weight
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from contract.spec import Precision
from worker.model.attention import Axis, causal_mask
from worker.model.batch import FlatBatch
from worker.model.block import BlockShape, BlockWeights, run_block
from worker.model.family import FAMILIES, Family, UnsupportedModelError, family_of, head_size
from worker.model.head import LabelLoss, label_loss
from worker.model.layout import GROUPS, Layout, Target
from worker.model.norm import rms_norm
from worker.model.rotary import RotaryTable


@dataclass(frozen=True)
class Backbone:
    """embedding and head are [V, K] (the same tensor where tied); `targets` are the matrices that adapters change.

    rotaries: the tables that layers turn by. embedding_scale: of what the first layer reads. logit_cap: see head.bent.
    """

    family: str
    embedding: Tensor
    layers: tuple[BlockWeights, ...]
    norm: Tensor
    head: Tensor
    shape: BlockShape
    rotaries: tuple[RotaryTable, ...]
    max_positions: int
    targets: tuple[Target, ...]
    embedding_scale: float | None = None
    logit_cap: float | None = None

    @property
    def device(self) -> torch.device:
        return self.embedding.device

    @property
    def beyond_kernels(self) -> tuple[str, ...]:
        """What of it the fused kernels cannot do; nothing where they run it."""
        return FAMILIES[self.family].beyond_kernels

    @classmethod
    def load(
        cls,
        source: Path | str,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        precision: Precision = "bf16",
    ) -> "Backbone":
        """Read a model folder (safetensors only, no remote code, no network). Raises UnsupportedModelError.

        dtype: of what is computed. precision: how linear maps are kept.
        """
        if not any(Path(source).glob("*.safetensors")):
            raise UnsupportedModelError(
                f"{source} is no model folder: it holds no *.safetensors, the only weights that are read"
            )
        config = AutoConfig.from_pretrained(source, trust_remote_code=False)
        family_of(config)
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            source, config=config, dtype=dtype, use_safetensors=True, trust_remote_code=False, output_loading_info=True
        )
        model, found = loaded
        lacking = sorted(found["missing_keys"]) + sorted(str(key) for key in found["mismatched_keys"])
        if lacking:
            raise UnsupportedModelError(f"the weights in {source} lack, or have in another shape: {', '.join(lacking[:8])}")
        return cls.of(model, device, precision)

    @classmethod
    def of(cls, model: PreTrainedModel, device: torch.device | str = "cpu", precision: Precision = "bf16") -> "Backbone":
        """Take over the weights of a transformers model of a known family."""
        config = model.config
        family = family_of(config)
        inner = model.get_submodule("model")
        layers = inner.get_submodule("layers")
        kinds = family.rope_kinds(config)
        embedding = _frozen(inner.get_submodule("embed_tokens"), device)
        tied = model.get_submodule("lm_head").weight is inner.get_submodule("embed_tokens").weight
        return cls(
            family=config.model_type,
            embedding=embedding,
            layers=tuple(
                _block(layer, family, device, precision, family.window(config, at), kinds.index(family.rope_kind(config, at)))
                for at, layer in enumerate(layers.children())
            ),
            norm=_norm(inner.get_submodule("norm"), family, device),
            head=embedding if tied else _frozen(model.get_submodule("lm_head"), device),
            shape=_shape(family, config),
            rotaries=tuple(_rotary(inner.get_submodule("rotary_emb"), kind, embedding) for kind in kinds),
            max_positions=config.max_position_embeddings,
            targets=_targets(layers),
            embedding_scale=_rounded(config.hidden_size**0.5, embedding) if family.scaled_embedding else None,
            logit_cap=family.number(config, family.logit_cap),
        )

    def tensors(self) -> Iterator[Tensor]:
        """Every frozen tensor."""
        yield from (self.embedding, self.norm, self.head)
        for weights in self.layers:
            for value in vars(weights).values():
                if isinstance(value, Tensor):
                    yield value
                elif isinstance(value, Nf4Weight):
                    yield from value.tensors()

    def embed(self, batch: FlatBatch) -> Tensor:
        """The first layer's input, [T, K]."""
        x_TK = self.embedding[batch.tokens]
        return x_TK if self.embedding_scale is None else x_TK.mul_(self.embedding_scale)

    def hidden(self, x_TK: Tensor, batch: FlatBatch, adapters: Adapters, layout: Layout) -> Tensor:
        """What the final norm reads, [T, K], from the first layer's input."""
        mask = causal_mask(batch.longest, x_TK)
        axes = []
        for rotary in self.rotaries:
            cos, sin = rotary.table(max(1, batch.longest))
            axes.append(Axis(batch.bounds, cos[batch.positions].unsqueeze(1), sin[batch.positions].unsqueeze(1), mask))
        for weights, groups in zip(self.layers, layout.layers, strict=True):
            x_TK = run_block(x_TK, weights, self.shape, axes[weights.rope], batch.pieces, adapters, groups)
        return x_TK

    def final_norm(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.norm, self.shape.eps)

    def label_loss(self, h_LK: Tensor, labels_L: Tensor, weights_L: Tensor | None) -> LabelLoss:
        """See head.label_loss; h_LK comes from the final norm."""
        return label_loss(h_LK, self.head, labels_L, weights_L, self.logit_cap)


def _shape(family: Family, config: PreTrainedConfig) -> BlockShape:
    return BlockShape(
        heads=config.num_attention_heads,
        key_heads=config.num_key_value_heads,
        head_size=head_size(config),
        eps=config.rms_norm_eps,
        scale=family.scale(config),
        cap=family.number(config, family.attention_cap),
        activation=family.activation,
    )


def _rounded(number: float, like: Tensor) -> float:
    """The number in the precision of `like`, as transformers keeps it."""
    return torch.tensor(number, dtype=like.dtype).item()


def _frozen(module: nn.Module, device: torch.device | str) -> Tensor:
    return module.get_parameter("weight").detach().to(device)


def _norm(module: nn.Module, family: Family, device: torch.device | str) -> Tensor:
    """A norm's weight as a factor. One that is stored less 1 is kept in float32, as transformers adds it up."""
    weight = _frozen(module, device)
    return 1 + (weight if weight.dtype == torch.float64 else weight.float()) if family.centred_norms else weight


def _rotary(module: Any, kind: str, like: Tensor) -> RotaryTable:
    """The table of the layers of a kind, "" where there is but one."""
    prefix = f"{kind}_" if kind else ""
    frequencies, scaling = getattr(module, f"{prefix}inv_freq"), getattr(module, f"{prefix}attention_scaling")
    return RotaryTable(frequencies.to(like.device), scaling, like.dtype)


def _joined(modules: list[nn.Module], device: torch.device | str, precision: Precision) -> tuple[Frozen, Tensor | None]:
    """Weights below each other, and biases likewise (all have one or none has)."""
    parts = [_frozen(module, device) for module in modules]
    weight = torch.cat(parts) if precision == "bf16" else Nf4Weight.of(parts, double=precision == "nf4_double")
    if getattr(modules[0], "bias", None) is None:
        return weight, None
    return weight, torch.cat([module.get_parameter("bias").detach() for module in modules]).to(device)


def _block(
    layer: nn.Module, family: Family, device: torch.device | str, precision: Precision, window: int | None, rope: int
) -> BlockWeights:
    attention, mlp = layer.get_submodule("self_attn"), layer.get_submodule("mlp")
    parents = {"qkv": attention, "o": attention, "gate_up": mlp, "down": mlp}
    joined = {
        name: _joined([parents[name].get_submodule(kind) for kind in kinds], device, precision)
        for name, kinds in GROUPS.items()
    }
    norms: dict[str, Any] = {name: _norm(layer.get_submodule(path), family, device) for name, path in family.norms.items()}
    if hasattr(attention, "q_norm"):
        norms |= {name: _norm(attention.get_submodule(name), family, device) for name in ("q_norm", "k_norm")}
    return BlockWeights(
        w_qkv=joined["qkv"][0],
        b_qkv=joined["qkv"][1],
        w_o=joined["o"][0],
        b_o=joined["o"][1],
        w_gate_up=joined["gate_up"][0],
        b_gate_up=joined["gate_up"][1],
        w_down=joined["down"][0],
        b_down=joined["down"][1],
        window=window,
        rope=rope,
        **({"q_norm": None, "k_norm": None} | norms),
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
