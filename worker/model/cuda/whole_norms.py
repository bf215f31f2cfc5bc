"""Norms of q and of k over all heads at once, as OLMo 2 has them; norms within a head are in rotary's kernel. Plain PyTorch:
every number is read for its row's mean square before any is turned. Legend: T tokens; Q, K widths of q and of k.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from grouped_lora.block.qkv_rotary import rotary, rotary_backward
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
        raw = qkv[:, : self.q.shape[0] + self.k.shape[0]].clone()
        for part, weight in self._parts():
            x = raw[:, part].float()
            qkv[:, part] = x * self._rstd(x) * weight.float()
        rotary(qkv, None, adapters, b_starts, cos, sin, positions, heads, table)
        return raw

    def rotary_backward(
        self, dqkv: Tensor, cos: Tensor, sin: Tensor, positions: Tensor, heads: tuple[int, int], raw: Tensor | None
    ) -> None:
        """As qkv_rotary.rotary_backward. raw: what `rotary` returned."""
        assert raw is not None, "forward keeps it"
        rotary_backward(dqkv, cos, sin, positions, heads)
        for part, weight in self._parts():
            x = raw[:, part].float()
            rstd = self._rstd(x)
            unit, dx = x * rstd, dqkv[:, part].float() * weight.float()
            dqkv[:, part] = (dx - unit * (dx * unit).mean(1, keepdim=True)) * rstd

    def _parts(self) -> Iterator[tuple[slice, Tensor]]:
        width = self.q.shape[0]
        yield slice(0, width), self.q
        yield slice(width, width + self.k.shape[0]), self.k

    def _rstd(self, x: Tensor) -> Tensor:
        return torch.rsqrt(x.square().mean(1, keepdim=True) + self.eps)
