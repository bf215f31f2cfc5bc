"""Norms of q and of k over all heads at once, as OLMo 2 has them; norms within a head are in rotary's kernel. Legend: T tokens;
Q, K widths of q and of k.
"""

from dataclasses import dataclass

import torch
from grouped_lora.block.qkv_rotary import rotary
from grouped_lora.block.whole_norm_rotary import whole_norm_rotary, whole_norm_rotary_backward
from grouped_lora.work_table import WorkTable
from torch import Tensor


@dataclass(frozen=True)
class WholeNorms:
    """The norms' weights, [Q] and [K]."""

    q: Tensor
    k: Tensor
    eps: float

    def rotary(
        self,
        qkv: Tensor,
        s: Tensor | None,
        adapters: Tensor,
        b_starts: tuple[int, int, int],
        cos: Tensor,
        sin: Tensor,
        positions: Tensor,
        heads: tuple[int, int],
        table: WorkTable,
    ) -> Tensor:
        """As qkv_rotary.rotary, with these norms between the adapters' part and the turn."""
        if s is not None:  # the kernel adds their part and turns by no angle
            still = torch.ones_like(cos[:1]), torch.zeros_like(sin[:1]), torch.zeros_like(positions)
            rotary(qkv, s, adapters, b_starts, *still, heads, table)
        return whole_norm_rotary(qkv, (self.q, self.k), self.eps, cos, sin, positions, heads)

    def rotary_backward(
        self, dqkv: Tensor, cos: Tensor, sin: Tensor, positions: Tensor, heads: tuple[int, int], raw: Tensor | None
    ) -> None:
        """As qkv_rotary.rotary_backward. raw: what `rotary` returned."""
        assert raw is not None, "forward keeps it"
        whole_norm_rotary_backward(dqkv, raw, (self.q, self.k), self.eps, cos, sin, positions, heads)
