"""One decoder block over the flat token axis, with a switch for each family's differences. Knows no jobs and no loading.

Legend: T tokens, K hidden, H query heads, G key heads, D head size, I intermediate size.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from grouped_lora import Adapters, Group, grouped_linear
from grouped_lora.base.frozen_product import Frozen
from torch import Tensor

from worker.model.plain.attention import Axis, Heads, attend
from worker.model.plain.gated_mlp import RowRanges, gated
from worker.model.plain.rms_norm import rms_norm

Attention = Callable[[Tensor, Axis, Heads], Tensor]  # as `attend`


@dataclass(frozen=True)
class BlockWeights:
    """A layer's frozen weights. What a family does not have is None; window None: full attention. rope: index of its rotary
    table. norm_attended, norm_mixed: of the outputs of attention and of the MLP, before they are added."""

    norm_attention: Tensor | None  # [K]
    w_qkv: Frozen  # [(H + 2 G) D, K]
    b_qkv: Tensor | None
    q_norm: Tensor | None  # [D], or over all heads [H D]
    k_norm: Tensor | None  # [D] or [G D]
    w_o: Frozen  # [K, H D]
    b_o: Tensor | None
    norm_mlp: Tensor | None  # [K]
    w_gate_up: Frozen  # [2 I, K]
    b_gate_up: Tensor | None
    w_down: Frozen  # [K, I]
    b_down: Tensor | None
    window: int | None
    norm_attended: Tensor | None = None  # [K]
    norm_mixed: Tensor | None = None
    rope: int = 0


@dataclass(frozen=True)
class BlockShape:
    """What all layers of a model share. scale: the factor of q k^T. cap: soft cap of attention's scores; None: no cap.
    whole_norms: norms of q and k are over all heads at once."""

    heads: int
    key_heads: int
    head_size: int
    eps: float
    scale: float
    cap: float | None = None
    activation: str = "silu"
    whole_norms: bool = False


def run_block(
    x_TK: Tensor,
    weights: BlockWeights,
    shape: BlockShape,
    axis: Axis,
    row_ranges: RowRanges,
    adapters: Adapters,
    groups: dict[str, Group],
    attention: Attention = attend,
) -> Tensor:
    """The layer's output, [T, K]. row_ranges: see gated. attention: over the flat axis, or a cache of earlier keys too."""
    normed = _input(x_TK, weights.norm_attention, shape.eps)
    qkv = grouped_linear(normed, weights.w_qkv, weights.b_qkv, adapters, groups["qkv"])
    attended = attention(qkv, axis, _heads(weights, shape))
    x_TK = _joined(x_TK, attended, weights.w_o, weights.b_o, weights.norm_attended, shape.eps, adapters, groups["o"])
    normed = _input(x_TK, weights.norm_mlp, shape.eps)
    gate_up = grouped_linear(normed, weights.w_gate_up, weights.b_gate_up, adapters, groups["gate_up"])
    mixed = gated(gate_up, row_ranges, shape.activation)
    return _joined(x_TK, mixed, weights.w_down, weights.b_down, weights.norm_mixed, shape.eps, adapters, groups["down"])


def _input(x_TK: Tensor, norm: Tensor | None, eps: float) -> Tensor:
    return x_TK if norm is None else rms_norm(x_TK, norm, eps)


def _joined(
    x_TK: Tensor,
    inner: Tensor,
    weight: Frozen,
    bias: Tensor | None,
    norm: Tensor | None,
    eps: float,
    adapters: Adapters,
    group: Group,
) -> Tensor:
    """The residual stream plus the output of a linear map, which is normed first where the family does so."""
    if norm is None:
        return grouped_linear(inner, weight, bias, adapters, group, residual_TN=x_TK)
    return x_TK + rms_norm(grouped_linear(inner, weight, bias, adapters, group), norm, eps)


def _heads(weights: BlockWeights, shape: BlockShape) -> Heads:
    norm_SD = None
    if weights.q_norm is not None and weights.k_norm is not None:
        pairs = ((weights.q_norm, shape.heads), (weights.k_norm, shape.key_heads))
        norm_SD = torch.cat([norm.view(-1, shape.head_size).expand(heads, -1) for norm, heads in pairs])
    sizes = shape.heads, shape.key_heads, shape.head_size, shape.eps
    return Heads(*sizes, norm_SD, weights.window, shape.scale, shape.cap, shape.whole_norms)
