"""Residual add + RMS norm, forward and backward, fused with the adapters' products.

Forward: x' = x + y + S B (o's or down's), h = x' / rms(x') * w; where y is normed before the sum (post_norm.py), x' = x + y /
rms(y) * w_y. Backward: g = dh + Σ dS A over the matrices that read h, and dx = dr + the norm's gradient of g, where dr is the
residual's gradient. Each program owns a few tokens and reads their columns twice. Knows no layer.

Legend: T tokens, D features; S[T, M, RMAX]; adapters[rows, W] one layer's compute copy.
"""

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from grouped_lora.cached_launch import Kernel
from grouped_lora.dropout_mask import keep_mask, load_keys
from grouped_lora.launch_configs import config
from grouped_lora.tiles import by_rank, load_ranks, load_shrunk, load_tokens, mma, share_of_block, store_tokens
from grouped_lora.work_table import BLOCK_T, WorkTable

WIDE = 256  # columns per iteration of backward's first pass, which only sums
# Backward's second pass is split among programs until a launch has this many; each program reads all columns for the sum, so
# the split affects time alone, not bits. It is no constant of the kernel: each length of a pass would compile its own.
FILLING = 264


class _Norm(NamedTuple):
    """The residual stream x, what is added to it (y, S and an adapter's B; or y times its own norm's factor and weight), the
    norm's weight, and the outputs."""

    x_ptr: Any
    y_ptr: Any
    s_ptr: Any
    b_ptr: Any
    b_stride: Any
    y_rstd_ptr: Any
    y_weight_ptr: Any
    w_ptr: Any
    sum_ptr: Any
    h_ptr: Any
    rstd_ptr: Any
    eps: Any


class _NormSizes(NamedTuple):
    HAS_Y: Any
    NORMED_Y: Any
    D: Any
    BT: Any
    BN: Any
    STAGES: Any
    RMAX: Any


@triton.jit
def _forward(p, share, sizes, R: tl.constexpr):
    start, end = share.start, share.end
    D: tl.constexpr = sizes.D
    BT: tl.constexpr = sizes.BT
    tokens = start + tl.arange(0, BT)
    squares = tl.zeros((BT,), tl.float32)
    if R > 0:
        s = load_shrunk(p.s_ptr, sizes.RMAX, 0, start, end, share.rank, BT, R)
    if sizes.NORMED_Y:
        y_rstd = tl.load(p.y_rstd_ptr + tokens, mask=tokens < end, other=0.0)
    for c in tl.range(0, D, sizes.BN, num_stages=sizes.STAGES):
        columns = c + tl.arange(0, sizes.BN)
        x = load_tokens(p.x_ptr, start, end, D, columns, D, BT).to(tl.float32)
        if sizes.HAS_Y:
            y = load_tokens(p.y_ptr, start, end, D, columns, D, BT).to(tl.float32)
            if sizes.NORMED_Y:
                y *= y_rstd[:, None] * tl.load(p.y_weight_ptr + columns, mask=columns < D, other=0.0).to(tl.float32)[None, :]
            x += y
            if R > 0:
                x = mma(s, load_ranks(p.b_ptr, p.b_stride, 0, share.row0, share.rank, columns, D, R), x)
            x = x.to(p.sum_ptr.dtype.element_ty).to(tl.float32)
            store_tokens(p.sum_ptr, start, end, D, columns, D, x, BT)
        squares += tl.sum(x * x, 1)
    rstd = 1.0 / tl.sqrt(squares / D + p.eps)
    tl.store(p.rstd_ptr + tokens, rstd, mask=tokens < end)
    tl.debug_barrier()  # the second pass reads what other threads of this program wrote in the first
    source = p.sum_ptr if sizes.HAS_Y else p.x_ptr
    for c in tl.range(0, D, sizes.BN, num_stages=sizes.STAGES):
        columns = c + tl.arange(0, sizes.BN)
        x = load_tokens(source, start, end, D, columns, D, BT).to(tl.float32)
        w = tl.load(p.w_ptr + columns, mask=columns < D, other=0.0).to(tl.float32)
        store_tokens(p.h_ptr, start, end, D, columns, D, x * rstd[:, None] * w[None, :], BT)


@Kernel
@triton.jit
def _residual_norm(
    x_ptr, y_ptr, s_ptr, b_ptr, y_rstd_ptr, y_weight_ptr, w_ptr, sum_ptr, h_ptr, rstd_ptr, spans_ptr, blocks_ptr, b_stride,
    b_column, eps, HAS_Y: tl.constexpr, NORMED_Y: tl.constexpr, D: tl.constexpr, BT: tl.constexpr, BN: tl.constexpr,
    STAGES: tl.constexpr, RMAX: tl.constexpr, RCLASS: tl.constexpr,
):  # fmt: skip
    _, share = share_of_block(blocks_ptr, spans_ptr, tl.program_id(1), tl.program_id(0) * BT)
    if share.start >= share.end:
        return
    operands = _Norm(
        x_ptr, y_ptr, s_ptr, b_ptr + b_column, b_stride, y_rstd_ptr, y_weight_ptr, w_ptr, sum_ptr, h_ptr, rstd_ptr, eps
    )
    by_rank(_forward, operands, share, _NormSizes(HAS_Y, NORMED_Y, D, BT, BN, STAGES, RMAX), RCLASS, True)


class _Back(NamedTuple):
    """Gradients dh (of the norm's output) and dr (of the residual stream), one to three matrices' dS, S and A, `a_step` columns
    apart, what forward kept, and the output's columns low .. high of this program."""

    dh_ptr: Any
    ds_ptr: Any
    s_ptr: Any
    a_ptr: Any
    a_stride: Any
    a_step: Any
    x_ptr: Any
    rstd_ptr: Any
    w_ptr: Any
    dr_ptr: Any
    dx_ptr: Any
    keys_ptr: Any
    matrix: Any
    scale: Any
    low: Any
    high: Any


class _BackSizes(NamedTuple):
    MATS: Any
    HAS_DR: Any
    D: Any
    WIDE: Any
    BT: Any
    BN: Any
    STAGES: Any
    DROP: Any
    RMAX: Any


@triton.jit
def _join(p, share, g, ds, columns, place: tl.constexpr, sizes, R: tl.constexpr):
    """g [T, N] plus dS A of the matrix at `place`."""
    a = load_ranks(p.a_ptr, p.a_stride, place * p.a_step, share.row0, share.rank, columns, sizes.D, R)
    if sizes.DROP:
        keep = keep_mask(
            load_keys(p.keys_ptr, share.start, share.end, sizes.BT), p.matrix + place, columns, share.drop_threshold
        )
        g += tl.where(keep, mma(ds, a, tl.zeros((sizes.BT, sizes.BN), tl.float32)), 0.0)
    else:
        g = mma(ds, a, g)
    return g


@triton.jit
def _shrunk(ptr, share, place: tl.constexpr, sizes, R: tl.constexpr):
    """The tile [T, R] of S or dS of the matrix at `place`."""
    stride: tl.constexpr = sizes.MATS * sizes.RMAX
    return load_shrunk(ptr, stride, place * sizes.RMAX, share.start, share.end, share.rank, sizes.BT, R)


@triton.jit
def _backward(p, share, sizes, R: tl.constexpr):
    start, end = share.start, share.end
    D: tl.constexpr = sizes.D
    BT: tl.constexpr = sizes.BT
    tokens = start + tl.arange(0, BT)
    rstd = tl.load(p.rstd_ptr + tokens, mask=tokens < end, other=0.0)
    dot = tl.zeros((BT,), tl.float32)
    for c in tl.range(0, D, sizes.WIDE, num_stages=sizes.STAGES):
        columns = c + tl.arange(0, sizes.WIDE)
        dh = load_tokens(p.dh_ptr, start, end, D, columns, D, BT).to(tl.float32)
        x = load_tokens(p.x_ptr, start, end, D, columns, D, BT).to(tl.float32)
        w = tl.load(p.w_ptr + columns, mask=columns < D, other=0.0).to(tl.float32)
        dot += tl.sum(dh * w[None, :] * x, 1)
    if R > 0:
        # The adapters' part of the dot product, (dS A) . (w x), is dS . S / (scale rstd): S is already stored, so A is read
        # once.
        known = tl.zeros((BT,), tl.float32)
        for mat in tl.static_range(sizes.MATS):
            ds = _shrunk(p.ds_ptr, share, mat, sizes, R).to(tl.float32)
            known += tl.sum(ds * _shrunk(p.s_ptr, share, mat, sizes, R).to(tl.float32), 1)
        dot += known / tl.where(tokens < end, rstd * tl.where(p.scale != 0.0, p.scale, 1.0), 1.0)
        ds0 = _shrunk(p.ds_ptr, share, 0, sizes, R)
        if sizes.MATS > 1:
            ds1 = _shrunk(p.ds_ptr, share, 1, sizes, R)
        if sizes.MATS > 2:
            ds2 = _shrunk(p.ds_ptr, share, 2, sizes, R)
    back = dot * rstd * rstd * rstd / D
    for c in tl.range(p.low, p.high, sizes.BN, num_stages=sizes.STAGES):
        columns = c + tl.arange(0, sizes.BN)
        g = load_tokens(p.dh_ptr, start, end, D, columns, D, BT).to(tl.float32)
        if R > 0:
            g = _join(p, share, g, ds0, columns, 0, sizes, R)
            if sizes.MATS > 1:
                g = _join(p, share, g, ds1, columns, 1, sizes, R)
            if sizes.MATS > 2:
                g = _join(p, share, g, ds2, columns, 2, sizes, R)
        x = load_tokens(p.x_ptr, start, end, D, columns, D, BT).to(tl.float32)
        w = tl.load(p.w_ptr + columns, mask=columns < D, other=0.0).to(tl.float32)
        dx = g * w[None, :] * rstd[:, None] - x * back[:, None]
        if sizes.HAS_DR:
            dx += load_tokens(p.dr_ptr, start, end, D, columns, D, BT).to(tl.float32)
        store_tokens(p.dx_ptr, start, end, D, columns, D, dx, BT)


@Kernel
@triton.jit(do_not_specialize=["matrix"])
def _norm_backward(
    dh_ptr, ds_ptr, s_ptr, a_ptr, x_ptr, rstd_ptr, w_ptr, dr_ptr, dx_ptr, keys_ptr, spans_ptr, scales_ptr, blocks_ptr, a_stride,
    a_column0, a_step, matrix, own_columns, MATS: tl.constexpr, HAS_DR: tl.constexpr, D: tl.constexpr, WIDE: tl.constexpr,
    BT: tl.constexpr, BN: tl.constexpr, STAGES: tl.constexpr, DROP: tl.constexpr, RMAX: tl.constexpr, RCLASS: tl.constexpr,
):  # fmt: skip
    span, share = share_of_block(blocks_ptr, spans_ptr, tl.program_id(2), tl.program_id(1) * BT)
    scale = tl.load(scales_ptr + span)
    if share.start >= share.end:
        return
    low = tl.program_id(0) * own_columns
    operands = _Back(
        dh_ptr, ds_ptr, s_ptr, a_ptr + a_column0, a_stride, a_step, x_ptr, rstd_ptr, w_ptr, dr_ptr, dx_ptr, keys_ptr, matrix,
        scale, low, tl.minimum(low + own_columns, D),
    )  # fmt: skip
    by_rank(_backward, operands, share, _BackSizes(MATS, HAS_DR, D, WIDE, BT, BN, STAGES, DROP, RMAX), RCLASS, True)


def residual_norm(
    x: torch.Tensor,
    y: torch.Tensor | None,
    s: torch.Tensor | None,
    adapters: torch.Tensor,
    b_column: int,
    weight: torch.Tensor,
    eps: float,
    table: WorkTable,
    y_norm: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(x', h, rstd): x' = x + y + s @ Bᵀ and h = norm(x') * weight, all [T, D] in x's dtype; rstd [T] fp32.

    Without y this is the plain norm and x' is x itself. `b_column`: where B of this layer's matrix starts in `adapters`.
    y_norm: what post_norm returned of y, and its norm's weight [D]: then x' = x + norm(y) * weight, and s is None.
    """
    assert y_norm is None or s is None
    total = torch.empty_like(x) if y is not None else x
    h = torch.empty_like(x)
    rstd = torch.empty(x.shape[0], dtype=torch.float32, device=x.device)
    for part in table.classes:
        rank = part.rank_class if s is not None else 0
        cfg = config("norm", rank)
        _residual_norm[(BLOCK_T // cfg.block_t, part.blocks.shape[0])](
            x, y if y is not None else x, s if s is not None else x, adapters, *(y_norm or (rstd, weight)), weight, total, h,
            rstd, part.spans, part.blocks, adapters.stride(0), b_column, eps,
            HAS_Y=y is not None, NORMED_Y=y_norm is not None, D=x.shape[1], BT=cfg.block_t, BN=cfg.block_n, STAGES=cfg.stages,
            RMAX=table.max_rank if s is not None else 0, RCLASS=rank, num_warps=cfg.warps, num_stages=cfg.stages,
        )  # fmt: skip
    return total, h, rstd


def norm_backward(
    dh: torch.Tensor,
    ds: torch.Tensor | None,
    s: torch.Tensor | None,
    adapters: torch.Tensor,
    a_starts: tuple[int, ...],
    x: torch.Tensor,
    rstd: torch.Tensor,
    weight: torch.Tensor,
    dr: torch.Tensor | None,
    table: WorkTable,
    matrix: int = 0,
) -> torch.Tensor:
    """dx [T, D] = dr + the norm's gradient of (dh + Σ ds[:, m] @ A_m), for matrices whose input is the norm's output.

    s [T, M, RMAX]: those matrices' S from forward. `a_starts` are evenly spaced. matrix: the number of the first, for dropout.
    """
    dx = torch.empty_like(dh)
    step = a_starts[1] - a_starts[0] if len(a_starts) > 1 else 0
    for part in table.classes:
        rank = part.rank_class if ds is not None else 0
        cfg = config("norm_backward", rank)
        programs = part.blocks.shape[0] * BLOCK_T // cfg.block_t
        share = dh.shape[1]
        while programs < FILLING and share > 2 * cfg.block_n:
            programs, share = 2 * programs, -(-share // (2 * cfg.block_n)) * cfg.block_n
        _norm_backward[(-(-dh.shape[1] // share), BLOCK_T // cfg.block_t, part.blocks.shape[0])](
            dh, ds if ds is not None else dh, s if s is not None else dh, adapters, x, rstd, weight,
            dr if dr is not None else dh, dx, table.keys if table.keys is not None else dh, part.spans, part.scales,
            part.blocks, adapters.stride(0), a_starts[0] if a_starts else 0, step, matrix, share,
            MATS=max(len(a_starts), 1), HAS_DR=dr is not None, D=dh.shape[1],
            WIDE=min(WIDE, triton.next_power_of_2(dh.shape[1])), BT=cfg.block_t, BN=cfg.block_n, STAGES=cfg.stages,
            DROP=table.keys is not None, RMAX=table.max_rank if ds is not None else 0, RCLASS=rank, num_warps=cfg.warps,
            num_stages=cfg.stages,
        )  # fmt: skip
    return dx
