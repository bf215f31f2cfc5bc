"""Causal attention over the flat axis, each sequence by itself: q/k norms where the family has them, rotary, softmax(q k^T) v.

Knows no weights but the norms', and no jobs. Plain products written out by hand, forward and backward: for the short rows of a
fine-tuning set they took two thirds of the time of PyTorch's fused call on CPU, and one masked call over all sequences took 18
times as long with bits that depended on the neighbours.

Legend: T tokens, L tokens of one sequence, Q query rows of a block, H query heads, G key heads, D head size.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from worker.model.plain.rms_norm import norm_forward, rms_norm_backward
from worker.model.plain.rotary import apply_rotary

BLOCK = 256  # query rows at a time; backward reuses the probabilities of a one-block sequence and recomputes others


@dataclass(frozen=True)
class Heads:
    """Heads of a layer. norm_SD: weights of the q and k norms, [H + G, D], or None. window: tokens seen, or None for all.
    scale: the factor of q k^T. cap: scores become cap tanh(score / cap); None: they stay. whole: the norms of q and of k are
    over all their heads at once."""

    query: int
    key: int
    size: int
    eps: float
    norm_SD: Tensor | None
    window: int | None
    scale: float
    cap: float | None = None
    whole: bool = False

    @property
    def turned(self) -> int:
        """Number of heads that rotary applies to: q's and k's."""
        return self.query + self.key


@dataclass(frozen=True)
class Axis:
    """What attention knows of the flat axis.

    bounds: offsets of the sequences. cos, sin: [T, 1, D / 2] of each token's position in its sequence. mask: see `causal_mask`.
    """

    bounds: tuple[int, ...]
    cos: Tensor
    sin: Tensor
    mask: Tensor


def causal_mask(longest: int, like: Tensor) -> Tensor:
    """[BLOCK, W + BLOCK]: zeros, then a triangle of -inf; a block's mask is a slice of it. W holds all keys before a block."""
    before = max(0, longest - 1) // BLOCK * BLOCK
    triangle = torch.full((BLOCK, BLOCK), float("-inf"), dtype=like.dtype, device=like.device).triu_(1)
    return torch.cat([triangle.new_zeros(BLOCK, before), triangle], 1)


class _Attend(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, qkv_TN: Tensor, axis: Axis, heads: Heads) -> Tensor:
        x = qkv_TN.view(qkv_TN.shape[0], -1, heads.size)
        qk, inverse = rotated(x, axis, heads)
        out = x.new_empty(x.shape[0], heads.query, heads.size)
        out[axis.bounds[-1] :].zero_()
        kept = []
        for start, stop in pairwise(axis.bounds):
            rows = slice(start, stop)
            q, k, v = _split(qk[rows], x[rows], heads)
            kept.append(attend_keys(q, k, v, heads, axis.mask, out[rows].transpose(0, 1)))
        ctx.axis, ctx.heads = axis, heads
        ctx.save_for_backward(qkv_TN, qk, out, inverse, *kept)
        return out.flatten(1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy_TN: Tensor) -> tuple[Tensor | None, ...]:
        qkv_TN, qk, out, inverse, *kept = ctx.saved_tensors
        axis, heads = ctx.axis, ctx.heads
        x = qkv_TN.view(qkv_TN.shape[0], -1, heads.size)
        d_qkv, d_qk = torch.empty_like(qkv_TN), torch.empty_like(qk)
        dx, dy = d_qkv.view(x.shape), dy_TN.view(out.shape)
        delta = (dy * out).sum(-1, keepdim=True)
        dx[axis.bounds[-1] :].zero_()
        d_qk[axis.bounds[-1] :].zero_()
        for (start, stop), p in zip(pairwise(axis.bounds), kept, strict=True):
            rows = slice(start, stop)
            upstream = dy[rows].transpose(0, 1), delta[rows].transpose(0, 1)
            _backward(upstream, (qk[rows], x[rows]), p, heads, axis.mask, (d_qk[rows], dx[rows]))
        d_raw = dx[:, : heads.turned]
        apply_rotary(d_qk, axis.cos, axis.sin, d_raw, back=True)
        if heads.norm_SD is not None:
            _norm_backward(d_raw, x[:, : heads.turned], heads, inverse)
        return d_qkv, None, None


def attend(qkv_TN: Tensor, axis: Axis, heads: Heads) -> Tensor:
    """softmax(scale q k^T) v within each sequence: [T, H D] from [T, (H + 2 G) D].

    A token sees itself and those before it in its sequence, with a window the window - 1 before it. Rows beyond the last bound
    come out as zeros.
    """
    out_TN: Tensor = _Attend.apply(qkv_TN, axis, heads)
    return out_TN


def rotated(x_TSD: Tensor, axis: Axis, heads: Heads) -> tuple[Tensor, Tensor | None]:
    """q and k of every token, [T, H + G, D], normed where the family norms them and rotated; and the norms' 1 / rms."""
    raw, inverse = x_TSD[:, : heads.turned], None
    if heads.norm_SD is not None:
        raw, inverse = _normed(raw, heads.norm_SD, heads)
    qk = torch.empty(raw.shape, dtype=raw.dtype, device=raw.device)
    apply_rotary(raw, axis.cos, axis.sin, qk)
    return qk, inverse


def _normed(raw_TSD: Tensor, norm_SD: Tensor, heads: Heads) -> tuple[Tensor, Tensor]:
    """q and k normed, and each one's 1 / rms [T, S, 1]; of whole norms [T, 2, 1], q's and k's."""
    normed = torch.empty(raw_TSD.shape, dtype=raw_TSD.dtype, device=raw_TSD.device)
    if not heads.whole:
        return normed, norm_forward(raw_TSD, norm_SD, heads.eps, normed)
    inverses = []
    for part in _q_and_k(heads):
        wide = torch.empty_like(raw_TSD[:, part].flatten(1))
        inverses.append(norm_forward(raw_TSD[:, part].flatten(1), norm_SD[part].flatten(), heads.eps, wide))
        normed[:, part] = wide.view_as(normed[:, part])
    return normed, torch.stack(inverses, 1)


def _norm_backward(d_raw_TSD: Tensor, raw_TSD: Tensor, heads: Heads, inverse: Tensor) -> None:
    """Replace the gradient of the normed q and k by that of `raw_TSD`."""
    assert heads.norm_SD is not None
    if not heads.whole:
        rms_norm_backward(d_raw_TSD, raw_TSD, heads.norm_SD, inverse, d_raw_TSD)
        return
    for place, part in enumerate(_q_and_k(heads)):
        gradient = d_raw_TSD[:, part].flatten(1)
        rms_norm_backward(gradient, raw_TSD[:, part].flatten(1), heads.norm_SD[part].flatten(), inverse[:, place], gradient)
        d_raw_TSD[:, part] = gradient.view_as(d_raw_TSD[:, part])


def _q_and_k(heads: Heads) -> tuple[slice, slice]:
    return slice(0, heads.query), slice(heads.query, heads.turned)


def _split(qk_LSD: Tensor, x_LSD: Tensor, heads: Heads) -> tuple[Tensor, Tensor, Tensor]:
    """q [H, L, D], k and v [G, L, D] of one sequence, as views."""
    turned = qk_LSD.transpose(0, 1)
    return turned[: heads.query], turned[heads.query :], x_LSD[:, heads.turned :].transpose(0, 1)


def _repeated(x_GLD: Tensor, heads: Heads) -> Tensor:
    """Each key head once for every query head it serves."""
    return x_GLD if heads.query == heads.key else x_GLD.repeat_interleave(heads.query // heads.key, 0)


def _blocks(length: int, window: int | None, past: int = 0) -> list[tuple[int, int, int]]:
    """Query rows [first, last) and the first key they see, block by block. past: keys before the first query."""
    starts = range(0, length, BLOCK)
    return [(at, min(at + BLOCK, length), 0 if window is None else max(0, past + at - window + 1)) for at in starts]


def _probabilities(q_HQD: Tensor, k_HLD: Tensor, behind: int, heads: Heads, mask: Tensor) -> tuple[Tensor, Tensor | None]:
    """softmax over the keys a row sees, [H, Q, L], and the cap's slope; the first row sees `behind` keys before its own."""
    rows, keys = q_HQD.shape[1], k_HLD.shape[1]
    before = mask.shape[1] - BLOCK
    own = mask[:rows, before - behind : before + rows]
    slope = None
    if heads.cap is None:
        scores = torch.baddbmm(own, q_HQD, k_HLD.transpose(1, 2), alpha=heads.scale)
    else:
        softcapped = torch.bmm(q_HQD, k_HLD.transpose(1, 2)).mul_(heads.scale / heads.cap).tanh_()
        slope = 1 - softcapped * softcapped
        scores = softcapped.mul_(heads.cap).add_(own)
    if heads.window is not None and keys > heads.window:
        row = torch.arange(behind, behind + rows, device=mask.device)
        scores.masked_fill_(row[:, None] - torch.arange(keys, device=mask.device) >= heads.window, float("-inf"))
    return torch.softmax(scores, -1), slope


def attend_keys(q_HQD: Tensor, k_GLD: Tensor, v_GLD: Tensor, heads: Heads, mask: Tensor, out_HQD: Tensor) -> Tensor | None:
    """Write one sequence's output. Its queries are of its last Q of L tokens; `mask` holds all keys before a block.

    Returns the probabilities if they are a single block and backward needs nothing else.
    """
    past = k_GLD.shape[1] - q_HQD.shape[1]
    k, v = _repeated(k_GLD, heads), _repeated(v_GLD, heads)
    blocks = _blocks(q_HQD.shape[1], heads.window, past)
    for first, last, key in blocks:
        seen = slice(key, past + last)
        p, _ = _probabilities(q_HQD[:, first:last], k[:, seen], past + first - key, heads, mask)
        out_HQD[:, first:last] = torch.bmm(p, v[:, seen])
    return p if len(blocks) == 1 and heads.cap is None else None


def _backward(
    upstream: tuple[Tensor, Tensor],
    inputs: tuple[Tensor, Tensor],
    kept: Tensor | None,
    heads: Heads,
    mask: Tensor,
    out: tuple[Tensor, Tensor],
) -> None:
    """Write one sequence's gradients to `out`: of q and k after rotary, and of v within its row of q, k, v.

    upstream: dy [H, L, D] and the sum of dy * y over D, [H, L, 1], which softmax's backward subtracts from every row's
    gradient.
    """
    dy, delta = upstream
    q, k, v = _split(*inputs, heads)
    dq, dk, dv = _split(*out, heads)
    k, v = _repeated(k, heads), _repeated(v, heads)
    for first, last, key in _blocks(q.shape[1], heads.window):
        rows, seen = slice(first, last), slice(key, last)
        p, slope = (kept, None) if kept is not None else _probabilities(q[:, rows], k[:, seen], first - key, heads, mask)
        ds = torch.bmm(dy[:, rows], v[:, seen].transpose(1, 2)).sub_(delta[:, rows]).mul_(p).mul_(heads.scale)
        if slope is not None:
            ds.mul_(slope)
        dq[:, rows] = torch.bmm(ds, k[:, seen])
        _add(dk[:, seen], torch.bmm(ds.transpose(1, 2), q[:, rows]), first - key)
        _add(dv[:, seen], torch.bmm(p.transpose(1, 2), dy[:, rows]), first - key)


def _add(target_GLD: Tensor, part_HLD: Tensor, old: int) -> None:
    """Sum over the query heads of each key head; add to the first `old` rows, and overwrite the rows after them."""
    groups, length, size = target_GLD.shape
    if part_HLD.shape[0] != groups:
        part_HLD = part_HLD.view(groups, -1, length, size).sum(1)
    if old:
        target_GLD[:, :old] += part_HLD[:, :old]
        target_GLD, part_HLD = target_GLD[:, old:], part_HLD[:, old:]
    target_GLD.copy_(part_HLD)
