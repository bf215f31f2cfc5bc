"""Rotary embedding of q and k, fused with the adapters' q, k, v products and the optional per-head norm (Qwen3); forward and
backward.

Works in place on qkv[T, (Hq + 2 Hkv) · D], backward on its gradient. Knows no attention. Legend: D head size, H = D / 2
(rotate-half pairs d and d + H); cos, sin [positions, H] fp32; S[T, 3, RMAX] in the order q, k, v.
"""

from math import gcd
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from grouped_lora.cached_launch import Kernel
from grouped_lora.launch_configs import LARGE_HEAD, config
from grouped_lora.tiles import by_rank, load_ranks, load_shrunk, mma, share_of_block
from grouped_lora.work_table import BLOCK_T, WorkTable

GROUP = 4  # heads that one program rotates, where the numbers of q and k heads are multiples of it


@triton.jit
def _norm_weight(qn_ptr, kn_ptr, mat, at, mask):
    """One half of q's or k's norm weight."""
    q = tl.load(qn_ptr + at, mask=mask & (mat == 0), other=0.0)
    return (q + tl.load(kn_ptr + at, mask=mask & (mat == 1), other=0.0)).to(tl.float32)[None, :]


class _Rotary(NamedTuple):
    """qkv, S and the columns of B of one of q, k and v (number `mat`); the tables; the heads from `first` on."""

    qkv_ptr: Any
    s_ptr: Any
    b_ptr: Any
    b_stride: Any
    raw_ptr: Any
    qn_ptr: Any
    kn_ptr: Any
    cos_ptr: Any
    sin_ptr: Any
    pos_ptr: Any
    mat: Any
    first: Any
    eps: Any


class _Sizes(NamedTuple):
    GROUP: Any
    HQ: Any
    HKV: Any
    H: Any
    BH: Any
    NORM: Any
    BT: Any
    RMAX: Any


@triton.jit
def _heads(p, share, sizes, R: tl.constexpr):
    """Process GROUP heads of one token block, all from q, k or v: S, cos and sin are loaded once for the group."""
    H: tl.constexpr = sizes.H
    start, end = share.start, share.end
    tokens = start + tl.arange(0, sizes.BT)
    half = tl.arange(0, sizes.BH)
    mask = (tokens < end)[:, None] & (half < H)[None, :]
    turns = p.mat < 2  # v is not rotated; Triton 3.6 fails to pipeline a loop with this condition inside
    if R > 0:
        s = load_shrunk(p.s_ptr, 3 * sizes.RMAX, p.mat * sizes.RMAX, start, end, share.rank, sizes.BT, R)
    position = tl.load(p.pos_ptr + tokens, mask=tokens < end, other=0).to(tl.int64)
    cos = tl.load(p.cos_ptr + position[:, None] * H + half[None, :], mask=mask & turns, other=1.0)
    sin = tl.load(p.sin_ptr + position[:, None] * H + half[None, :], mask=mask & turns, other=0.0)
    if sizes.NORM:
        norm_low = _norm_weight(p.qn_ptr, p.kn_ptr, p.mat, half, half < H)
        norm_high = _norm_weight(p.qn_ptr, p.kn_ptr, p.mat, H + half, half < H)
    column = 0
    for head in range(p.first, p.first + sizes.GROUP):
        at = tokens.to(tl.int64)[:, None] * ((sizes.HQ + 2 * sizes.HKV) * 2 * H) + head * 2 * H + half[None, :]
        low = tl.load(p.qkv_ptr + at, mask=mask, other=0.0).to(tl.float32)
        high = tl.load(p.qkv_ptr + at + H, mask=mask, other=0.0).to(tl.float32)
        if R > 0:
            low = mma(s, load_ranks(p.b_ptr, p.b_stride, column, share.row0, share.rank, half, H, R), low)
            high = mma(s, load_ranks(p.b_ptr, p.b_stride, column + H, share.row0, share.rank, half, H, R), high)
            column += 2 * H
        if sizes.NORM:
            raw = tokens.to(tl.int64)[:, None] * ((sizes.HQ + sizes.HKV) * 2 * H) + head * 2 * H + half[None, :]
            raw_low = low.to(p.raw_ptr.dtype.element_ty)
            raw_high = high.to(p.raw_ptr.dtype.element_ty)
            tl.store(p.raw_ptr + raw, raw_low, mask=mask & turns)
            tl.store(p.raw_ptr + raw + H, raw_high, mask=mask & turns)
            raw_low = raw_low.to(tl.float32)
            raw_high = raw_high.to(tl.float32)
            rstd = 1.0 / tl.sqrt((tl.sum(raw_low * raw_low, 1) + tl.sum(raw_high * raw_high, 1)) / (2 * H) + p.eps)
            low = tl.where(turns, raw_low * rstd[:, None] * norm_low, low)
            high = tl.where(turns, raw_high * rstd[:, None] * norm_high, high)
        tl.store(p.qkv_ptr + at, low * cos - high * sin, mask=mask)
        tl.store(p.qkv_ptr + at + H, high * cos + low * sin, mask=mask)


@Kernel
@triton.jit
def _rotary(
    qkv_ptr, s_ptr, w_ptr, raw_ptr, qn_ptr, kn_ptr, cos_ptr, sin_ptr, pos_ptr, spans_ptr, blocks_ptr, w_stride,
    q_column, k_column, v_column, eps, GROUP: tl.constexpr, HQ: tl.constexpr, HKV: tl.constexpr, H: tl.constexpr,
    BH: tl.constexpr, NORM: tl.constexpr, BT: tl.constexpr, RMAX: tl.constexpr, RCLASS: tl.constexpr,
):  # fmt: skip
    first = tl.program_id(0) * GROUP
    _, share = share_of_block(blocks_ptr, spans_ptr, tl.program_id(1))
    mat = tl.where(first < HQ, 0, tl.where(first < HQ + HKV, 1, 2))
    if (share.start >= share.end) | ((share.rank == 0) & (mat == 2)):
        return  # without an adapter v stays as it is
    local = first - tl.where(mat == 0, 0, tl.where(mat == 1, HQ, HQ + HKV))
    column = tl.where(mat == 0, q_column, tl.where(mat == 1, k_column, v_column)) + local * 2 * H
    operands = _Rotary(
        qkv_ptr, s_ptr, w_ptr + column, w_stride, raw_ptr, qn_ptr, kn_ptr, cos_ptr, sin_ptr, pos_ptr, mat, first, eps
    )
    by_rank(_heads, operands, share, _Sizes(GROUP, HQ, HKV, H, BH, NORM, BT, RMAX), RCLASS, True)


@Kernel
@triton.jit
def _rotary_backward(
    dqkv_ptr, raw_ptr, qn_ptr, kn_ptr, cos_ptr, sin_ptr, pos_ptr, eps, T,
    HQ: tl.constexpr, HKV: tl.constexpr, H: tl.constexpr, BH: tl.constexpr, NORM: tl.constexpr, BT: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(0)
    tokens = tl.program_id(1) * BT + tl.arange(0, BT)
    half = tl.arange(0, BH)
    mask = (tokens < T)[:, None] & (half < H)[None, :]
    at = tokens.to(tl.int64)[:, None] * ((HQ + 2 * HKV) * 2 * H) + head * 2 * H + half[None, :]
    low = tl.load(dqkv_ptr + at, mask=mask, other=0.0).to(tl.float32)
    high = tl.load(dqkv_ptr + at + H, mask=mask, other=0.0).to(tl.float32)
    position = tl.load(pos_ptr + tokens, mask=tokens < T, other=0).to(tl.int64)
    cos = tl.load(cos_ptr + position[:, None] * H + half[None, :], mask=mask, other=0.0)
    sin = tl.load(sin_ptr + position[:, None] * H + half[None, :], mask=mask, other=0.0)
    turned = low * cos + high * sin
    high = high * cos - low * sin
    low = turned
    if NORM:
        raw = tokens.to(tl.int64)[:, None] * ((HQ + HKV) * 2 * H) + head * 2 * H + half[None, :]
        x_low = tl.load(raw_ptr + raw, mask=mask, other=0.0).to(tl.float32)
        x_high = tl.load(raw_ptr + raw + H, mask=mask, other=0.0).to(tl.float32)
        norm_ptr = qn_ptr if head < HQ else kn_ptr
        low *= tl.load(norm_ptr + half, mask=half < H, other=0.0).to(tl.float32)[None, :]
        high *= tl.load(norm_ptr + H + half, mask=half < H, other=0.0).to(tl.float32)[None, :]
        rstd = 1.0 / tl.sqrt((tl.sum(x_low * x_low, 1) + tl.sum(x_high * x_high, 1)) / (2 * H) + eps)
        back = (tl.sum(low * x_low, 1) + tl.sum(high * x_high, 1)) * rstd * rstd * rstd / (2 * H)
        low = low * rstd[:, None] - x_low * back[:, None]
        high = high * rstd[:, None] - x_high * back[:, None]
    tl.store(dqkv_ptr + at, low, mask=mask)
    tl.store(dqkv_ptr + at + H, high, mask=mask)


def rotary(
    qkv: torch.Tensor,
    s: torch.Tensor | None,
    adapters: torch.Tensor,
    b_starts: tuple[int, int, int],
    cos: torch.Tensor,
    sin: torch.Tensor,
    positions: torch.Tensor,
    heads: tuple[int, int],
    table: WorkTable,
    head_norms: tuple[torch.Tensor, torch.Tensor, float] | None = None,
) -> torch.Tensor | None:
    """In place on qkv [T, (Hq + 2 Hkv) D]: add the adapters' part from s [T, 3, RMAX], norm q and k where the family does,
    rotate.

    `positions` [T] int. Returns q and k from before the norm ([T, (Hq + Hkv) D], for backward), or None without norms.
    """
    half = cos.shape[1]
    hq, hkv = heads
    raw = torch.empty((qkv.shape[0], (hq + hkv) * 2 * half), dtype=qkv.dtype, device=qkv.device) if head_norms else None
    cfg = config("rotary_large" if 2 * half > LARGE_HEAD else "rotary_normed" if head_norms else "rotary")
    group = gcd(GROUP, hq, hkv)
    for part in table.classes:
        _rotary[((hq + 2 * hkv) // group, part.blocks.shape[0])](
            qkv, s if s is not None else qkv, adapters, raw if raw is not None else qkv,
            head_norms[0] if head_norms else qkv, head_norms[1] if head_norms else qkv, cos, sin, positions,
            part.spans, part.blocks, adapters.stride(0), *b_starts, head_norms[2] if head_norms else 0.0,
            GROUP=group, HQ=hq, HKV=hkv, H=half, BH=max(16, triton.next_power_of_2(half)), NORM=head_norms is not None,
            BT=BLOCK_T, RMAX=table.max_rank if s is not None else 0, RCLASS=part.rank_class if s is not None else 0,
            num_warps=cfg.warps, num_stages=cfg.stages,
        )  # fmt: skip
    return raw


def rotary_backward(
    dqkv: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    positions: torch.Tensor,
    heads: tuple[int, int],
    raw: torch.Tensor | None = None,
    head_norms: tuple[torch.Tensor, torch.Tensor, float] | None = None,
) -> torch.Tensor:
    """In place on dqkv [T, (Hq + 2 Hkv) D]: rotate the gradients of q and k back, and pass them through the head norms."""
    hq, hkv = heads
    half = cos.shape[1]
    cfg = config("rotary")
    _rotary_backward[(hq + hkv, -(-dqkv.shape[0] // BLOCK_T))](
        dqkv, raw if raw is not None else dqkv, head_norms[0] if head_norms else dqkv, head_norms[1] if head_norms else dqkv,
        cos, sin, positions, head_norms[2] if head_norms else 0.0, dqkv.shape[0],
        HQ=hq, HKV=hkv, H=half, BH=max(16, triton.next_power_of_2(half)), NORM=head_norms is not None, BT=BLOCK_T,
        num_warps=cfg.warps, num_stages=cfg.stages,
    )  # fmt: skip
    return dqkv
