"""Attention on the flat token axis on CUDA: flash attention over cu_seqlens, grouped-query without copying K and V.

Knows q, k, v after rotary and the sequences' bounds; nothing of projections, adapters or layers. The operators are the ones
behind torch.nn.attention.varlen, called without autograd since the block writes its own backward.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Sequences:
    """bounds: int32 [S + 1] on the device, ending in repeats where there are fewer sequences; longest: their length's bound."""

    bounds: Tensor
    longest: int


@dataclass(frozen=True)
class Saved:
    """What backward needs beside q, k, v: out [T, Hq, D], the log-sum-exp, and the operator's own random state (unused)."""

    out: Tensor
    lse: Tensor
    state: Tensor
    unused: Tensor


def forward(q: Tensor, k: Tensor, v: Tensor, sequences: Sequences, scale: float, window: int | None) -> Saved:
    """Causal attention of q [T, Hq, D] over k, v [T, Hkv, D] within each sequence; strided views are welcome.

    With a window a token sees itself and the window - 1 before it.
    """
    out, lse, state, unused, _ = torch.ops.aten._flash_attention_forward(
        q, k, v, sequences.bounds, sequences.bounds, sequences.longest, sequences.longest, 0.0, True, False,
        scale=scale, window_size_left=None if window is None else window - 1, window_size_right=None if window is None else 0,
    )  # fmt: skip
    return Saved(out, lse, state, unused)


def backward(
    dout: Tensor, q: Tensor, k: Tensor, v: Tensor, saved: Saved, sequences: Sequences, scale: float, window: int | None
) -> tuple[Tensor, ...]:
    """dq [T, Hq, D], dk, dv [T, Hkv, D], summed in a fixed order (two runs give the same bits)."""
    was = torch.are_deterministic_algorithms_enabled()
    torch._C._set_deterministic_algorithms(True)
    try:
        grads: tuple[Tensor, ...] = torch.ops.aten._flash_attention_backward(
            dout, q, k, v, saved.out, saved.lse, sequences.bounds, sequences.bounds, sequences.longest, sequences.longest,
            0.0, True, saved.state, saved.unused, scale=scale,
            window_size_left=None if window is None else window - 1, window_size_right=None if window is None else 0,
        )  # fmt: skip
    finally:
        torch._C._set_deterministic_algorithms(was)
    return grads
