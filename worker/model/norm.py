"""RMS norm over the last axis, with a frozen weight (Zhang & Sennrich 2019). Knows nothing of what it normalises."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


class _RmsNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        wide = x.float() if x.dtype in (torch.bfloat16, torch.float16) else x
        scale = torch.rsqrt((wide * wide).mean(-1, keepdim=True).add_(eps))
        ctx.save_for_backward(x, weight, scale)
        return (wide * scale).to(x.dtype).mul_(weight)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None, None]:
        x, weight, scale = ctx.saved_tensors
        unit = x.to(scale.dtype) * scale
        dx = (dy * weight).to(scale.dtype)
        shared = (dx * unit).mean(-1, keepdim=True)
        dx.sub_(unit.mul_(shared)).mul_(scale)
        return dx.to(dy.dtype), None, None


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x / rms(x) * weight, the mean square taken in at least float32."""
    y: Tensor = _RmsNorm.apply(x, weight, eps)
    return y
