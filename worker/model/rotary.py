"""Rotary positions (Su et al. 2021) as one differentiable function. Knows no sequences: every token brings its position."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

TABLE_STEP = 1024  # positions are tabulated in pieces of one size, so that a longer table never changes an entry's bits


class RotaryTable:
    """cos and sin of every position seen so far, [positions, D / 2]; grows on demand."""

    def __init__(self, inv_freq: Tensor, scaling: float, dtype: torch.dtype) -> None:
        self._inv_freq, self._scaling = inv_freq.float(), scaling
        empty = torch.empty(0, inv_freq.shape[0], dtype=dtype, device=inv_freq.device)
        self._cos, self._sin = empty, empty.clone()

    def lookup(self, positions_T: Tensor, length: int) -> tuple[Tensor, Tensor]:
        """cos and sin [T, 1, D / 2] of positions below `length`."""
        while self._cos.shape[0] < length:
            self._extend()
        return self._cos[positions_T].unsqueeze(1), self._sin[positions_T].unsqueeze(1)

    def table(self, length: int) -> tuple[Tensor, Tensor]:
        """cos and sin of all positions below `length`, float32 [length, D / 2]."""
        angles = torch.outer(torch.arange(length, dtype=torch.float32, device=self._inv_freq.device), self._inv_freq)
        return angles.cos() * self._scaling, angles.sin() * self._scaling

    def _extend(self) -> None:
        start = self._cos.shape[0]
        places = torch.arange(start, start + TABLE_STEP, dtype=torch.float32, device=self._inv_freq.device)
        angles = torch.outer(places, self._inv_freq)
        self._cos = torch.cat([self._cos, (angles.cos() * self._scaling).to(self._cos.dtype)])
        self._sin = torch.cat([self._sin, (angles.sin() * self._scaling).to(self._sin.dtype)])


def _turn(x_THD: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = x_THD.shape[-1] // 2
    left, right = x_THD[..., :half], x_THD[..., half:]
    y_THD = torch.empty(x_THD.shape, dtype=x_THD.dtype, device=x_THD.device)
    torch.mul(left, cos, out=y_THD[..., :half]).sub_(right * sin)
    torch.mul(right, cos, out=y_THD[..., half:]).add_(left * sin)
    return y_THD


class _Rotate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_THD: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        return _turn(x_THD, cos, sin)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy_THD: Tensor) -> tuple[Tensor, None, None]:
        cos, sin = ctx.saved_tensors
        return _turn(dy_THD, cos, -sin), None, None


def rotate(x_THD: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn every head's pairs (i, i + D/2) by the token's angle; cos and sin are [T, 1, D/2]."""
    y_THD: Tensor = _Rotate.apply(x_THD, cos, sin)
    return y_THD
