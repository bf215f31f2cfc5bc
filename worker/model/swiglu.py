"""silu(gate) * up (Shazeer 2020), the activation of every supported family's MLP. Knows no weights."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

Pieces = tuple[tuple[int, int], ...]  # row ranges


class _SwiGlu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate_up: Tensor, pieces: Pieces) -> Tensor:
        ctx.save_for_backward(gate_up)
        ctx.pieces = pieces
        gate, up = gate_up.chunk(2, dim=1)
        mixed = torch.empty(up.shape, dtype=up.dtype, device=up.device)
        for start, stop in pieces:
            torch.mul(F.silu(gate[start:stop]), up[start:stop], out=mixed[start:stop])
        return mixed

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None]:
        (gate_up,) = ctx.saved_tensors
        gate, up = gate_up.chunk(2, dim=1)
        d_gate_up = torch.empty_like(gate_up)
        d_gate, d_up = d_gate_up.chunk(2, dim=1)
        for start, stop in ctx.pieces:
            _backward(gate[start:stop], up[start:stop], dy[start:stop], d_gate[start:stop], d_up[start:stop])
        return d_gate_up, None


def _backward(gate: Tensor, up: Tensor, dy: Tensor, d_gate: Tensor, d_up: Tensor) -> None:
    sigmoid = torch.sigmoid(gate)
    silu = gate * sigmoid
    torch.mul(dy, silu, out=d_up)
    slope = silu.mul_(1 - sigmoid).add_(sigmoid)  # silu' = sigmoid + silu (1 - sigmoid)
    torch.mul(dy, up, out=d_gate)
    d_gate.mul_(slope)


def swiglu(gate_up: Tensor, pieces: Pieces) -> Tensor:
    """silu(gate) * up for gate_up [T, 2 I]: [T, I].

    `pieces` cover all rows and end where a job's tokens end: a vectorised exp and its scalar tail differ in the last bit, and
    where a tail falls depends on the size of the call.
    """
    mixed: Tensor = _SwiGlu.apply(gate_up, pieces)
    return mixed
