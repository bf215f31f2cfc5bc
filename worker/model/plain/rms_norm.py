"""RMS norm over the last axis, with a frozen weight (Zhang & Sennrich 2019). Knows nothing of what it normalises."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


def norm_forward(x: Tensor, weight: Tensor, eps: float, out: Tensor) -> Tensor:
    """Write x / rms(x) * weight to `out`; returns 1 / rms(x) [..., 1], in at least float32."""
    wide = x.float() if x.dtype in (torch.bfloat16, torch.float16) else x
    inverse = (wide * wide).mean(-1, keepdim=True).add_(eps).rsqrt_()
    torch.mul(wide, inverse, out=out) if out.dtype == wide.dtype else out.copy_(wide * inverse)
    out.mul_(weight)
    return inverse


def rms_norm_backward(dy: Tensor, x: Tensor, weight: Tensor, inverse: Tensor, out: Tensor) -> None:
    """Write the gradient of x to `out`."""
    unit = x * inverse
    dx = (dy * weight).to(unit.dtype)
    shared = (dx * unit).mean(-1, keepdim=True)
    out.copy_(dx.sub_(unit.mul_(shared)).mul_(inverse))


class _RmsNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_TK: Tensor, weight: Tensor, eps: float) -> Tensor:
        y_TK = torch.empty_like(x_TK)
        ctx.save_for_backward(x_TK, weight, norm_forward(x_TK, weight, eps, y_TK))
        return y_TK

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy_TK: Tensor) -> tuple[Tensor | None, ...]:
        x_TK, weight, inverse = ctx.saved_tensors
        dx_TK = torch.empty_like(dy_TK)
        rms_norm_backward(dy_TK, x_TK, weight, inverse, dx_TK)
        return dx_TK, None, None


def rms_norm(x_TK: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x / rms(x) * weight, the mean square taken in at least float32."""
    y_TK: Tensor = _RmsNorm.apply(x_TK, weight, eps)
    return y_TK
