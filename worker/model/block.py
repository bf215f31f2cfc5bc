"""One decoder block over the flat token axis, with a switch for what each family has. Knows no jobs and no loading.

Legend: T tokens, K hidden, H query heads, G key heads, D head size, I intermediate size.
"""

from dataclasses import dataclass

import torch
from grouped_lora import Adapters, Group, grouped_linear
from torch import Tensor

from worker.model.attention import Axis, Heads, attend
from worker.model.norm import rms_norm
from worker.model.swiglu import Pieces, swiglu


@dataclass(frozen=True)
class BlockWeights:
    """A layer's frozen weights. Biases and q/k norms are None where the family has none; window None: full attention."""

    norm_attention: Tensor  # [K]
    w_qkv: Tensor  # [(H + 2 G) D, K]
    b_qkv: Tensor | None
    q_norm: Tensor | None  # [D]
    k_norm: Tensor | None
    w_o: Tensor  # [K, H D]
    b_o: Tensor | None
    norm_mlp: Tensor  # [K]
    w_gate_up: Tensor  # [2 I, K]
    b_gate_up: Tensor | None
    w_down: Tensor  # [K, I]
    b_down: Tensor | None
    window: int | None


@dataclass(frozen=True)
class BlockShape:
    """Numbers that all layers of a model share."""

    heads: int
    key_heads: int
    head_size: int
    eps: float


def run_block(
    x_TK: Tensor,
    weights: BlockWeights,
    shape: BlockShape,
    axis: Axis,
    pieces: Pieces,
    adapters: Adapters,
    groups: dict[str, Group],
) -> Tensor:
    """The layer's output, [T, K]. `pieces`: see swiglu."""
    normed = rms_norm(x_TK, weights.norm_attention, shape.eps)
    qkv = grouped_linear(normed, weights.w_qkv, weights.b_qkv, adapters, groups["qkv"])
    attended = attend(qkv, axis, _heads(weights, shape))
    x_TK = grouped_linear(attended, weights.w_o, weights.b_o, adapters, groups["o"], residual_TN=x_TK)
    normed = rms_norm(x_TK, weights.norm_mlp, shape.eps)
    gate_up = grouped_linear(normed, weights.w_gate_up, weights.b_gate_up, adapters, groups["gate_up"])
    mixed = swiglu(gate_up, pieces)
    return grouped_linear(mixed, weights.w_down, weights.b_down, adapters, groups["down"], residual_TN=x_TK)


def _heads(weights: BlockWeights, shape: BlockShape) -> Heads:
    norm_SD = None
    if weights.q_norm is not None and weights.k_norm is not None:
        norm_SD = torch.cat([weights.q_norm.expand(shape.heads, -1), weights.k_norm.expand(shape.key_heads, -1)])
    return Heads(shape.heads, shape.key_heads, shape.head_size, shape.eps, norm_SD, weights.window)
