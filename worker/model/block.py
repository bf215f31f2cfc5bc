"""One decoder block over the flat token axis, with a switch for what each family has. Knows no jobs and no loading.

Legend: T tokens, K hidden, H query heads, G key heads, D head size, I intermediate size.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from grouped_lora import Adapters, Group, grouped_linear
from torch import Tensor
from torch.autograd.function import once_differentiable

from worker.model.attention import attend
from worker.model.norm import rms_norm
from worker.model.rotary import rotate


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


@dataclass(frozen=True)
class Axis:
    """What every layer needs to know of the flat axis: sequence bounds, and cos and sin [T, 1, D / 2] of each token."""

    bounds: tuple[int, ...]
    ranges: tuple[tuple[int, int], ...]
    cos: Tensor
    sin: Tensor


def run_block(
    x_TK: Tensor, weights: BlockWeights, shape: BlockShape, axis: Axis, adapters: Adapters, groups: dict[str, Group]
) -> Tensor:
    """The layer's output, [T, K]."""
    normed = rms_norm(x_TK, weights.norm_attention, shape.eps)
    qkv = grouped_linear(normed, weights.w_qkv, weights.b_qkv, adapters, groups["qkv"])
    attended = _attention(qkv, weights, shape, axis)
    x_TK = x_TK + grouped_linear(attended, weights.w_o, weights.b_o, adapters, groups["o"])
    normed = rms_norm(x_TK, weights.norm_mlp, shape.eps)
    gate_up = grouped_linear(normed, weights.w_gate_up, weights.b_gate_up, adapters, groups["gate_up"])
    mixed = swiglu(gate_up, axis.ranges)
    return x_TK + grouped_linear(mixed, weights.w_down, weights.b_down, adapters, groups["down"])


def _attention(qkv: Tensor, weights: BlockWeights, shape: BlockShape, axis: Axis) -> Tensor:
    heads = qkv.view(qkv.shape[0], -1, shape.head_size)
    q, k, v = heads.split((shape.heads, shape.key_heads, shape.key_heads), dim=1)
    if weights.q_norm is not None and weights.k_norm is not None:
        q, k = rms_norm(q, weights.q_norm, shape.eps), rms_norm(k, weights.k_norm, shape.eps)
    q, k = rotate(q, axis.cos, axis.sin), rotate(k, axis.cos, axis.sin)
    return attend(q, k, v, axis.bounds, weights.window).flatten(1)


class _SwiGlu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate_up: Tensor, ranges: tuple[tuple[int, int], ...]) -> Tensor:
        ctx.save_for_backward(gate_up)
        ctx.ranges = ranges
        gate, up = gate_up.chunk(2, dim=1)
        mixed = torch.zeros(up.shape, dtype=up.dtype, device=up.device)
        for start, stop in ranges:
            torch.mul(F.silu(gate[start:stop]), up[start:stop], out=mixed[start:stop])
        return mixed

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None]:
        (gate_up,) = ctx.saved_tensors
        gate, up = gate_up.chunk(2, dim=1)
        d_gate_up = torch.zeros_like(gate_up)
        d_gate, d_up = d_gate_up.chunk(2, dim=1)
        for start, stop in ctx.ranges:
            g, d = gate[start:stop], dy[start:stop]
            sigmoid = torch.sigmoid(g)
            silu = g * sigmoid
            torch.mul(d, silu, out=d_up[start:stop])
            slope = sigmoid.addcmul_(silu, 1 - sigmoid)
            torch.mul(d * up[start:stop], slope, out=d_gate[start:stop])
        return d_gate_up, None


def swiglu(gate_up: Tensor, ranges: tuple[tuple[int, int], ...]) -> Tensor:
    """silu(gate) * up for gate_up [T, 2 I]: [T, I]; zeros outside `ranges`.

    One call per range (one job's tokens): a vectorised exp and its scalar tail differ in the last bit, and where a tail falls
    depends on the size of the call.
    """
    mixed: Tensor = _SwiGlu.apply(gate_up, ranges)
    return mixed
