"""Backbone: the frozen base model, run by our own decoder block. Knows no jobs, no loss and no files."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import torch
from grouped_lora import Adapters
from grouped_lora.base.fp8 import Fp8Weight
from grouped_lora.base.nf4 import Nf4Weight
from torch import Tensor
from transformers import PreTrainedConfig

from contract.task_spec import Precision
from worker.model.arena_layout import GROUPS, Layout, Target
from worker.model.base_weight_reader import (
    EMBEDDING,
    HEAD,
    NORM,
    PATHS,
    Weights,
    at_hand,
    in_folder,
    matrices_of,
    places_in,
    shapes_of,
)
from worker.model.config_reader import read_config
from worker.model.families import Family, family_of, head_size, longest_row, turned_size
from worker.model.flat_batch import FlatBatch
from worker.model.joined_matrices import stored_rows, taken_apart
from worker.model.plain.attention import Axis, causal_mask
from worker.model.plain.decoder_block import BlockShape, BlockWeights, run_block
from worker.model.plain.lm_head import LabelLoss, label_loss
from worker.model.plain.recomputation import recomputed
from worker.model.plain.rms_norm import rms_norm
from worker.model.plain.rotary import RotaryTable
from worker.model.sharding.sharded_parts import PartShards
from worker.model.sharding.weight_shards import (
    ALL_RESIDENT,
    EMBEDDING_UNIT,
    FORWARD,
    HEAD_UNIT,
    Gathers,
    Sharding,
    WeightShards,
    layer_unit,
)

OnLoaded = Callable[[int, int], None]  # bytes, as stored, of the layers that this rank is done with, and of all


def ignore_progress(loaded: int, whole: int) -> None:
    return


class Model(Protocol):
    """The parts of a transformers model that a backbone takes over."""

    config: Any

    def state_dict(self) -> Mapping[str, Tensor]: ...


@dataclass(frozen=True)
class Backbone:
    """embedding and head are [V, K] (the same tensor where tied); `targets` are the matrices that adapters change.

    rotaries: the layers' rotary tables. embedding_scale: factor of the first layer's input. logit_cap: see lm_head.softcapped.
    gathers: brings the weights of a sharded base before they are read; whoever reads `layers`, `embedding` or `head` asks it.
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
    gathers: Gathers = ALL_RESIDENT

    @property
    def shards(self) -> WeightShards | None:
        """This rank's, of a sharded base."""
        return self.gathers if isinstance(self.gathers, WeightShards) else None

    def measured(self) -> "Backbone":
        """The same weights for passes that measure memory: they gather nothing, and read what the buffers hold."""
        return replace(self, gathers=ALL_RESIDENT)

    @property
    def device(self) -> torch.device:
        return self.embedding.device

    @classmethod
    def load(
        cls,
        source: Path | str,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        precision: Precision = "bf16",
        sharding: Sharding | None = None,
        on_progress: OnLoaded = ignore_progress,
    ) -> "Backbone":
        """Read a model folder (safetensors only, no remote code, no network). Raises UnsupportedModelError.

        dtype: of the computation. precision: how linear maps are stored. sharding: what this rank keeps, and reads, a part of
        alone. on_progress: called after each layer.
        """
        config, folder = read_config(source), Path(source)
        family = family_of(config)
        held = taken_apart(config, in_folder(folder, pinned=torch.device(device).type == "cuda"))
        weights = Weights(held, shapes_of(family, config), device, dtype, places_in(folder))
        return cls._of(config, family, weights, precision, sharding, on_progress)

    @classmethod
    def without_weights(cls, source: Path | str, dtype: torch.dtype) -> "Backbone":
        """A model folder's shapes alone, on the meta device, every linear map dense. Raises UnsupportedModelError."""
        config, meta = read_config(source), torch.device("meta")
        family = family_of(config)
        shapes = shapes_of(family, config)
        held = at_hand({name: torch.empty(shape, dtype=dtype, device=meta) for name, shape in shapes.items()})
        return cls._of(config, family, Weights(held, shapes, meta), "bf16", None)

    @classmethod
    def of(
        cls,
        model: "Model",
        device: torch.device | str = "cpu",
        precision: Precision = "bf16",
        sharding: Sharding | None = None,
    ) -> "Backbone":
        """Take over the weights of a transformers model of a known family."""
        config = model.config
        family = family_of(config)
        weights = Weights(taken_apart(config, at_hand(model.state_dict())), shapes_of(family, config), device)
        return cls._of(config, family, weights, precision, sharding)

    @classmethod
    def _of(
        cls,
        config: PreTrainedConfig,
        family: Family,
        weights: Weights,
        precision: Precision,
        sharding: Sharding | None,
        on_progress: OnLoaded = ignore_progress,
    ) -> "Backbone":
        parts, norm = PartShards(sharding, weights, precision), weights[NORM]
        whole, of_layers = weights.stored_bytes()
        embedding, layers, loaded = parts.end(EMBEDDING_UNIT, EMBEDDING), list[BlockWeights](), 0
        for index in range(config.num_hidden_layers):
            layers.append(_block(weights, family, config, index, parts))
            loaded += of_layers[index]
            on_progress(loaded, whole)
        head = embedding if config.tie_word_embeddings else parts.end(HEAD_UNIT, HEAD)
        parts.allocate()
        on_progress(whole, whole)
        embedding = parts.read_end(EMBEDDING_UNIT, embedding)
        return cls(
            family=config.model_type,
            embedding=embedding,
            layers=tuple(parts.read_layer(index, block) for index, block in enumerate(layers)),
            norm=_norm(norm, family),
            head=embedding if config.tie_word_embeddings else parts.read_end(HEAD_UNIT, head),
            shape=_shape(family, config),
            rotaries=tuple(_rotary(config, kind, norm) for kind in family.rope_kinds(config)),
            max_positions=longest_row(config),
            targets=targets_of(config),
            embedding_scale=_rounded(config.hidden_size**0.5, norm) if family.scaled_embedding else None,
            logit_cap=family.number(config, family.logit_cap),
            gathers=parts.gathers,
        )

    def tensors(self) -> Iterator[Tensor]:
        """Every frozen tensor."""
        yield from (self.embedding, self.norm, self.head)
        for weights in self.layers:
            for value in vars(weights).values():
                if isinstance(value, Tensor):
                    yield value
                elif isinstance(value, Nf4Weight | Fp8Weight):
                    yield from value.tensors()
        if self.shards is not None:
            yield from self.shards.tensors()

    def embed(self, batch: FlatBatch) -> Tensor:
        """The first layer's input, [T, K]."""
        self.gathers.use(EMBEDDING_UNIT, FORWARD)
        x_TK = self.embedding[batch.tokens]
        return x_TK if self.embedding_scale is None else x_TK.mul_(self.embedding_scale)

    def hidden(self, x_TK: Tensor, batch: FlatBatch, adapters: Adapters, layout: Layout, recompute: bool = False) -> Tensor:
        """The final norm's input, [T, K], from the first layer's input. recompute: backward computes each layer again."""
        mask = causal_mask(batch.longest, x_TK)
        axes = []
        for rotary in self.rotaries:
            cos, sin = rotary.table(max(1, batch.longest))
            axes.append(Axis(batch.bounds, cos[batch.positions].unsqueeze(1), sin[batch.positions].unsqueeze(1), mask))
        for index, (weights, groups) in enumerate(zip(self.layers, layout.layers, strict=True)):
            given = x_TK, weights, self.shape, axes[weights.rope], batch.activation_ranges, adapters, groups
            self.gathers.use(layer_unit(index), FORWARD)
            x_TK = recomputed(run_block, *given) if recompute else run_block(*given)
            x_TK = self.gathers.use_in_backward(x_TK, layer_unit(index))
        return x_TK

    def final_norm(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.norm, self.shape.eps)

    def label_loss(self, h_LK: Tensor, labels_L: Tensor, loss_weights_L: Tensor | None) -> LabelLoss:
        """See lm_head.label_loss; h_LK comes from the final norm."""
        self.gathers.use(HEAD_UNIT, FORWARD)
        return label_loss(h_LK, self.head, labels_L, loss_weights_L, self.logit_cap)


def _shape(family: Family, config: PreTrainedConfig) -> BlockShape:
    return BlockShape(
        heads=config.num_attention_heads,
        key_heads=config.num_key_value_heads,
        head_size=head_size(config),
        eps=config.rms_norm_eps,
        scale=family.scale(config),
        cap=family.number(config, family.attention_cap),
        activation=family.activation,
        whole_norms=family.whole_norms,
    )


def _rotary(config: PreTrainedConfig, kind: str, like: Tensor) -> RotaryTable:
    return RotaryTable.of(config, head_size(config), kind, like, turned_size(config))


def _rounded(number: float, like: Tensor) -> float:
    """The number in the precision of `like`, as transformers keeps it."""
    return torch.tensor(number, dtype=like.dtype).item()


def _norm(weight: Tensor, family: Family) -> Tensor:
    """A norm's weight as a factor. A weight that is stored less 1 is kept in float32, as transformers computes it."""
    return 1 + (weight if weight.dtype == torch.float64 else weight.float()) if family.centred_norms else weight


def _block(weights: Weights, family: Family, config: PreTrainedConfig, layer: int, parts: PartShards) -> BlockWeights:
    prefix, biased = f"model.layers.{layer}", family.biased(config)
    # Weights are stacked along their rows, and biases likewise (all have one or none has).
    biases: dict[str, Any] = {
        f"b_{name}": torch.cat(weights.below(prefix, "bias", modules)) if modules[0] in biased else None
        for name, modules in GROUPS.items()
    }
    maps: dict[str, Any] = parts.linear_maps(
        layer, {f"w_{name}": [f"{prefix}.{PATHS[module]}.weight" for module in modules] for name, modules in GROUPS.items()}
    )
    without: dict[str, Any] = dict.fromkeys(("norm_attention", "norm_mlp", "q_norm", "k_norm"))
    norms: dict[str, Any] = without | {
        name: _norm(weights[f"{prefix}.{path}.weight"], family) for name, path in (family.norms | family.head_norms).items()
    }
    return BlockWeights(
        window=family.window(config, layer),
        rope=family.rope_kinds(config).index(family.rope_kind(config, layer)),
        **(norms | biases | maps),
    )


def targets_of(config: PreTrainedConfig) -> tuple[Target, ...]:
    """Every linear map of every layer, in the order a row holds them."""
    found = []
    for layer, stored in enumerate(stored_rows(config)):
        for module, (rows, columns) in matrices_of(config).items():
            name = f"model.layers.{layer}.{PATHS[module]}"
            found.append(Target(name, layer, module, columns, rows, stored.get(module)))
    return tuple(found)
