"""RMS norm over the last axis, with a frozen weight (Zhang & Sennrich 2019). Knows nothing of what it normalises."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

Pieces = tuple[tuple[int, int], ...]  # row ranges; work goes piece by piece, so that a piece stays in a core's cache


def norm_forward(x: Tensor, weight: Tensor, eps: float, out: Tensor) -> Tensor:
    """Write x / rms(x) * weight to `out`; returns 1 / rms(x) [..., 1], in at least float32."""
    wide = x.float() if x.dtype in (torch.bfloat16, torch.float16) else x
    inverse = (wide * wide).mean(-1, keepdim=True).add_(eps).rsqrt_()
    torch.mul(wide, inverse, out=out) if out.dtype == wide.dtype else out.copy_(wide * inverse)
    out.mul_(weight)
    return inverse


def norm_backward(dy: Tensor, x: Tensor, weight: Tensor, inverse: Tensor, out: Tensor) -> None:
    """Write the gradient of x to `out`."""
    unit = x * inverse
    dx = (dy * weight).to(unit.dtype)
    shared = (dx * unit).mean(-1, keepdim=True)
    out.copy_(dx.sub_(unit.mul_(shared)).mul_(inverse))


class _RmsNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_TK: Tensor, weight: Tensor, eps: float, pieces: Pieces) -> Tensor:
        y_TK = torch.empty_like(x_TK)
        inverses = [norm_forward(x_TK[start:stop], weight, eps, y_TK[start:stop]) for start, stop in pieces]
        ctx.pieces = pieces
        ctx.save_for_backward(x_TK, weight, *inverses)
        return y_TK

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy_TK: Tensor) -> tuple[Tensor | None, ...]:
        x_TK, weight, *inverses = ctx.saved_tensors
        dx_TK = torch.empty_like(dy_TK)
        for (start, stop), inverse in zip(ctx.pieces, inverses, strict=True):
            norm_backward(dy_TK[start:stop], x_TK[start:stop], weight, inverse, dx_TK[start:stop])
        return dx_TK, None, None, None


def rms_norm(x_TK: Tensor, weight: Tensor, eps: float, pieces: Pieces) -> Tensor:
    """x / rms(x) * weight, the mean square taken in at least float32. `pieces` cover all rows of `x_TK`."""
    y_TK: Tensor = _RmsNorm.apply(x_TK, weight, eps, pieces)
    return y_TK
