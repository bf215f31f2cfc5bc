"""act(gate) * up (Shazeer 2020), the middle of every family's MLP; act is silu, or gelu by tanh. Knows no weights."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

RowRanges = tuple[tuple[int, int], ...]  # start and stop of each

_ROOT, _CUBE = (2 / torch.pi) ** 0.5, 0.044715  # Hendrycks & Gimpel 2016, section 2


class Activation(NamedTuple):
    """value: act(x). slope: (act(x), act'(x))."""

    value: Callable[[Tensor], Tensor]
    slope: Callable[[Tensor], tuple[Tensor, Tensor]]


def _silu_slope(x: Tensor) -> tuple[Tensor, Tensor]:
    sigmoid = torch.sigmoid(x)
    silu = x * sigmoid
    return silu, (1 - sigmoid).mul_(silu).add_(sigmoid)  # silu' = sigmoid + silu (1 - sigmoid)


def _bend(x: Tensor) -> Tensor:
    """1 + tanh(root(2 / pi) (x + 0.044715 x^3)), step by step: a fused call rounds its vectorised and its scalar part
    differently."""
    return (x * x).mul_(_CUBE).add_(1).mul_(x).mul_(_ROOT).tanh_().add_(1)


def _gelu(x: Tensor) -> Tensor:
    x = x.float() if x.dtype in (torch.bfloat16, torch.float16) else x
    return _bend(x).mul_(x).mul_(0.5)


def _gelu_slope(x: Tensor) -> tuple[Tensor, Tensor]:
    x = x.float() if x.dtype in (torch.bfloat16, torch.float16) else x
    bend = _bend(x)
    gelu = bend * x * 0.5
    inner = (x * x).mul_(3 * _CUBE).add_(1).mul_(_ROOT)  # the derivative of tanh's argument
    return gelu, (2 - bend).mul_(gelu).mul_(inner).add_(bend.mul_(0.5))  # 1 - tanh^2 = bend (2 - bend)


ACTIVATIONS: Mapping[str, Activation] = {
    "silu": Activation(F.silu, _silu_slope),
    "gelu_pytorch_tanh": Activation(_gelu, _gelu_slope),
}


class _Gated(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate_up: Tensor, row_ranges: RowRanges, activation: Activation) -> Tensor:
        ctx.save_for_backward(gate_up)
        ctx.row_ranges, ctx.activation = row_ranges, activation
        gate, up = gate_up.chunk(2, dim=1)
        mixed = torch.empty(up.shape, dtype=up.dtype, device=up.device)
        for start, stop in row_ranges:
            torch.mul(activation.value(gate[start:stop]), up[start:stop], out=mixed[start:stop])
        return mixed

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None, None]:
        (gate_up,) = ctx.saved_tensors
        gate, up = gate_up.chunk(2, dim=1)
        d_gate_up = torch.empty_like(gate_up)
        d_gate, d_up = d_gate_up.chunk(2, dim=1)
        for start, stop in ctx.row_ranges:
            value, slope = ctx.activation.slope(gate[start:stop])
            torch.mul(dy[start:stop], value, out=d_up[start:stop])
            torch.mul(dy[start:stop], up[start:stop], out=d_gate[start:stop])
            d_gate[start:stop].mul_(slope)
        return d_gate_up, None, None


def gated(gate_up: Tensor, row_ranges: RowRanges, activation: str) -> Tensor:
    """act(gate) * up for gate_up [T, 2 I]: [T, I]. activation: one of ACTIVATIONS.

    `row_ranges` cover all rows and end where a job's tokens end: a vectorised exp and its scalar tail differ in the last bit,
    and where a tail falls depends on the size of the call.
    """
    mixed: Tensor = _Gated.apply(gate_up, row_ranges, ACTIVATIONS[activation])
    return mixed
