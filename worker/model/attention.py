"""Causal attention over the flat axis, each sequence by itself: q/k norms where the family has them, rotary, softmax(q k^T) v.

Knows no weights but the norms', and no jobs. One call per sequence: on CPU a masked call over all of them took 18 times as
long, and its bits depended on the neighbours. A sequence's q, k, v stay in a core's cache from the norm to the product.

Legend: T tokens, L tokens of one sequence, H query heads, G key heads, D head size.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from worker.model.norm import norm_backward, norm_forward
from worker.model.rotary import turn


@dataclass(frozen=True)
class Heads:
    """Heads of a layer. norm_SD: weights of the q and k norms, [H + G, D], or None. window: tokens seen, or None for all."""

    query: int
    key: int
    size: int
    eps: float
    norm_SD: Tensor | None
    window: int | None

    @property
    def turned(self) -> int:
        """How many heads are turned: q's and k's."""
        return self.query + self.key


class _Piece(NamedTuple):
    """One sequence's own little graph, walked back by hand."""

    inverse: Tensor | None  # 1 / rms of every q and k head, [L, H + G, 1]
    leaves: tuple[Tensor, Tensor, Tensor]
    out_HLD: Tensor


class _Attend(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, qkv_TN: Tensor, cos: Tensor, sin: Tensor, bounds: tuple[int, ...], heads: Heads) -> Tensor:
        out_TN = qkv_TN.new_empty(qkv_TN.shape[0], heads.query * heads.size)
        out_TN[bounds[-1] :].zero_()
        pieces = []
        for start, stop in pairwise(bounds):
            piece = _forward(qkv_TN[start:stop], cos[: stop - start], sin[: stop - start], heads, ctx.needs_input_grad[0])
            out_TN[start:stop].view(-1, heads.query, heads.size).copy_(piece.out_HLD.detach().transpose(0, 1))
            pieces.append(piece)
        ctx.bounds, ctx.heads, ctx.pieces = bounds, heads, pieces
        ctx.save_for_backward(qkv_TN, cos, sin)
        return out_TN

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy_TN: Tensor) -> tuple[Tensor | None, ...]:
        qkv_TN, cos, sin = ctx.saved_tensors
        d_qkv = torch.empty_like(qkv_TN)
        d_qkv[ctx.bounds[-1] :].zero_()
        for (start, stop), piece in zip(pairwise(ctx.bounds), ctx.pieces, strict=True):
            rows = slice(start, stop)
            _backward(piece, dy_TN[rows], qkv_TN[rows], cos[: stop - start], sin[: stop - start], ctx.heads, d_qkv[rows])
        return d_qkv, None, None, None, None


def attend(qkv_TN: Tensor, cos: Tensor, sin: Tensor, bounds: tuple[int, ...], heads: Heads) -> Tensor:
    """softmax(q k^T / sqrt(D)) v within each sequence [bounds[i], bounds[i + 1]): [T, H D] from [T, (H + 2 G) D].

    cos and sin, [positions, 1, D / 2], cover the longest sequence; positions restart with every sequence. A token sees itself
    and those before it, with a window the window - 1 before it. Rows beyond the last bound come out as zeros.
    """
    out_TN: Tensor = _Attend.apply(qkv_TN, cos, sin, bounds, heads)
    return out_TN


def _forward(qkv_LN: Tensor, cos: Tensor, sin: Tensor, heads: Heads, wanted: bool) -> _Piece:
    x = qkv_LN.view(qkv_LN.shape[0], -1, heads.size)
    raw, values = x[:, : heads.turned], x[:, heads.turned :]
    inverse = None
    if heads.norm_SD is not None:
        normed = torch.empty_like(raw)
        inverse = norm_forward(raw, heads.norm_SD, heads.eps, normed)
        raw = normed
    turned = raw.new_empty(raw.shape)
    turn(raw, cos, sin, turned)
    with torch.set_grad_enabled(wanted):
        q, k, v = (
            part.transpose(0, 1).detach().requires_grad_(wanted)
            for part in (turned[:, : heads.query], turned[:, heads.query :], values)
        )
        return _Piece(inverse, (q, k, v), _softmax_product(q, k, v, heads.window))


def _backward(piece: _Piece, dy_LN: Tensor, qkv_LN: Tensor, cos: Tensor, sin: Tensor, heads: Heads, d_qkv: Tensor) -> None:
    dy_HLD = dy_LN.view(-1, heads.query, heads.size).transpose(0, 1)
    dq, dk, dv = torch.autograd.grad(piece.out_HLD, piece.leaves, dy_HLD)
    dx = d_qkv.view(d_qkv.shape[0], -1, heads.size)
    turn(dq.transpose(0, 1), cos, sin, dx[:, : heads.query], back=True)
    turn(dk.transpose(0, 1), cos, sin, dx[:, heads.query : heads.turned], back=True)
    dx[:, heads.turned :].copy_(dv.transpose(0, 1))
    if heads.norm_SD is not None and piece.inverse is not None:
        raw = qkv_LN.view(qkv_LN.shape[0], -1, heads.size)[:, : heads.turned]
        d_turned = dx[:, : heads.turned]
        norm_backward(d_turned, raw, heads.norm_SD, piece.inverse, d_turned)


def _softmax_product(q_HLD: Tensor, k_GLD: Tensor, v_GLD: Tensor, window: int | None) -> Tensor:
    length = q_HLD.shape[1]
    mask = _window_mask(length, window, q_HLD.device) if window is not None and length > window else None
    return F.scaled_dot_product_attention(
        q_HLD.unsqueeze(0),
        k_GLD.unsqueeze(0),
        v_GLD.unsqueeze(0),
        attn_mask=mask,
        is_causal=mask is None,
        enable_gqa=q_HLD.shape[0] != k_GLD.shape[0],
    ).squeeze(0)


def _window_mask(length: int, window: int, device: torch.device) -> Tensor:
    places = torch.arange(length, device=device)
    behind = places[:, None] - places[None, :]
    return (behind >= 0) & (behind < window)
