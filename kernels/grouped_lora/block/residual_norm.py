"""Residual add + RMS norm, forward and backward, fused with the adapters' products.

Forward: x' = x + y + S B (o's or down's), h = x' / rms(x') * w. Backward: g = dh + Σ dS A over the matrices that read h, and dx
= dr + the norm's gradient of g, where dr is the residual's gradient. Each program owns a few tokens and reads their columns
twice. Knows no layer. Legend: T tokens, D features; S[T, M, RMAX]; adapters[rows, W] one layer's compute copy.
"""

import torch
import triton
import triton.language as tl

from grouped_lora.cached_launch import Kernel
from grouped_lora.dropout_mask import kept, load_keys
from grouped_lora.launch_configs import config
from grouped_lora.tiles import block_at, load_ranks, load_shrunk, load_tokens, mma, store_tokens
from grouped_lora.work_table import BLOCK_T, WorkTable

WIDE = 512  # columns per iteration of backward's first pass, which only sums
# Backward's second pass is split among programs until a launch has this many; each program reads all columns for the sum, so
# the split affects time alone, not bits.
FILLING = 264


@triton.jit
def _forward(
    x_ptr, y_ptr, s_ptr, b_ptr, w_ptr, sum_ptr, h_ptr, rstd_ptr, b_stride, b_column, eps, start, end, row0, rank,
    HAS_Y: tl.constexpr, D: tl.constexpr, BT: tl.constexpr, BN: tl.constexpr, STAGES: tl.constexpr, RMAX: tl.constexpr,
    R: tl.constexpr,
):  # fmt: skip
    tokens = start + tl.arange(0, BT)
    squares = tl.zeros((BT,), tl.float32)
    if R > 0:
        s = load_shrunk(s_ptr, RMAX, 0, start, end, rank, BT, R)
    for c in tl.range(0, D, BN, num_stages=STAGES):
        columns = c + tl.arange(0, BN)
        x = load_tokens(x_ptr, start, end, D, columns, D, BT).to(tl.float32)
        if HAS_Y:
            x += load_tokens(y_ptr, start, end, D, columns, D, BT).to(tl.float32)
            if R > 0:
                x = mma(s, load_ranks(b_ptr, b_stride, b_column, row0, rank, columns, D, R), x)
            x = x.to(sum_ptr.dtype.element_ty).to(tl.float32)
            store_tokens(sum_ptr, start, end, D, columns, D, x, BT)
        squares += tl.sum(x * x, 1)
    rstd = 1.0 / tl.sqrt(squares / D + eps)
    tl.store(rstd_ptr + tokens, rstd, mask=tokens < end)
    tl.debug_barrier()  # the second pass reads what other threads of this program wrote in the first
    source = sum_ptr if HAS_Y else x_ptr
    for c in tl.range(0, D, BN, num_stages=STAGES):
        columns = c + tl.arange(0, BN)
        x = load_tokens(source, start, end, D, columns, D, BT).to(tl.float32)
        w = tl.load(w_ptr + columns, mask=columns < D, other=0.0).to(tl.float32)
        store_tokens(h_ptr, start, end, D, columns, D, x * rstd[:, None] * w[None, :], BT)


@Kernel
@triton.jit
def _residual_norm(
    x_ptr, y_ptr, s_ptr, b_ptr, w_ptr, sum_ptr, h_ptr, rstd_ptr, spans_ptr, blocks_ptr, b_stride, b_column, eps,
    HAS_Y: tl.constexpr, D: tl.constexpr, BT: tl.constexpr, BN: tl.constexpr, STAGES: tl.constexpr, RMAX: tl.constexpr,
):  # fmt: skip
    block = tl.program_id(1)
    _, start, end, row0, rank, _ = block_at(blocks_ptr, spans_ptr, block)
    start += tl.program_id(0) * BT
    if start >= end:
        return
    if RMAX == 0:
        _forward(x_ptr, y_ptr, s_ptr, b_ptr, w_ptr, sum_ptr, h_ptr, rstd_ptr, b_stride, b_column, eps, start, end, row0, rank,
                 HAS_Y, D, BT, BN, STAGES, RMAX, 0)  # fmt: skip
    else:
        if rank == 0:
            _forward(x_ptr, y_ptr, s_ptr, b_ptr, w_ptr, sum_ptr, h_ptr, rstd_ptr, b_stride, b_column, eps, start, end, row0,
                     rank, HAS_Y, D, BT, BN, STAGES, RMAX, 0)  # fmt: skip
        elif rank <= 16:
            _forward(x_ptr, y_ptr, s_ptr, b_ptr, w_ptr, sum_ptr, h_ptr, rstd_ptr, b_stride, b_column, eps, start, end, row0,
                     rank, HAS_Y, D, BT, BN, STAGES, RMAX, 16)  # fmt: skip
        elif (rank <= 32) | (RMAX <= 32):
            _forward(x_ptr, y_ptr, s_ptr, b_ptr, w_ptr, sum_ptr, h_ptr, rstd_ptr, b_stride, b_column, eps, start, end, row0,
                     rank, HAS_Y, D, BT, BN, STAGES, RMAX, 32)  # fmt: skip
        else:
            _forward(x_ptr, y_ptr, s_ptr, b_ptr, w_ptr, sum_ptr, h_ptr, rstd_ptr, b_stride, b_column, eps, start, end, row0,
                     rank, HAS_Y, D, BT, BN, STAGES, RMAX, RMAX)  # fmt: skip


@triton.jit
def _join(g, s, keys_ptr, a_ptr, a_stride, a_column, matrix, columns, start, end, row0, rank, limit, D: tl.constexpr,
          BT: tl.constexpr, BN: tl.constexpr, DROP: tl.constexpr, R: tl.constexpr):  # fmt: skip
    a = load_ranks(a_ptr, a_stride, a_column, row0, rank, columns, D, R)
    if DROP:
        keep = kept(load_keys(keys_ptr, start, end, BT), matrix, columns, limit)
        return g + tl.where(keep, mma(s, a, tl.zeros((BT, BN), tl.float32)), 0.0)
    else:
        return mma(s, a, g)


@triton.jit
def _backward(
    dh_ptr, ds_ptr, s_ptr, a_ptr, x_ptr, rstd_ptr, w_ptr, dr_ptr, dx_ptr, keys_ptr, a_stride, a_column0, a_step, matrix, start,
    end, row0, rank, scale, limit, low, high, MATS: tl.constexpr, HAS_DR: tl.constexpr, D: tl.constexpr, WIDE: tl.constexpr,
    BT: tl.constexpr, BN: tl.constexpr, STAGES: tl.constexpr, DROP: tl.constexpr, RMAX: tl.constexpr, R: tl.constexpr,
):  # fmt: skip
    tokens = start + tl.arange(0, BT)
    rstd = tl.load(rstd_ptr + tokens, mask=tokens < end, other=0.0)
    dot = tl.zeros((BT,), tl.float32)
    for c in tl.range(0, D, WIDE, num_stages=STAGES):
        columns = c + tl.arange(0, WIDE)
        dh = load_tokens(dh_ptr, start, end, D, columns, D, BT).to(tl.float32)
        x = load_tokens(x_ptr, start, end, D, columns, D, BT).to(tl.float32)
        w = tl.load(w_ptr + columns, mask=columns < D, other=0.0).to(tl.float32)
        dot += tl.sum(dh * w[None, :] * x, 1)
    if R > 0:
        # The adapters' part of the dot product, (dS A) . (w x), is dS . S / (scale rstd): S is already stored, so A is read
        # once.
        known = tl.zeros((BT,), tl.float32)
        for mat in tl.static_range(MATS):
            ds = load_shrunk(ds_ptr, MATS * RMAX, mat * RMAX, start, end, rank, BT, R).to(tl.float32)
            known += tl.sum(ds * load_shrunk(s_ptr, MATS * RMAX, mat * RMAX, start, end, rank, BT, R).to(tl.float32), 1)
        dot += known / tl.where(tokens < end, rstd * tl.where(scale != 0.0, scale, 1.0), 1.0)
        ds0 = load_shrunk(ds_ptr, MATS * RMAX, 0, start, end, rank, BT, R)
        if MATS > 1:
            ds1 = load_shrunk(ds_ptr, MATS * RMAX, RMAX, start, end, rank, BT, R)
        if MATS > 2:
            ds2 = load_shrunk(ds_ptr, MATS * RMAX, 2 * RMAX, start, end, rank, BT, R)
    back = dot * rstd * rstd * rstd / D
    for c in tl.range(low, high, BN, num_stages=STAGES):
        columns = c + tl.arange(0, BN)
        g = load_tokens(dh_ptr, start, end, D, columns, D, BT).to(tl.float32)
        if R > 0:
            g = _join(g, ds0, keys_ptr, a_ptr, a_stride, a_column0, matrix, columns, start, end, row0, rank, limit,
                      D, BT, BN, DROP, R)  # fmt: skip
            if MATS > 1:
                g = _join(g, ds1, keys_ptr, a_ptr, a_stride, a_column0 + a_step, matrix + 1, columns, start, end, row0, rank,
                          limit, D, BT, BN, DROP, R)  # fmt: skip
            if MATS > 2:
                g = _join(g, ds2, keys_ptr, a_ptr, a_stride, a_column0 + 2 * a_step, matrix + 2, columns, start, end, row0,
                          rank, limit, D, BT, BN, DROP, R)  # fmt: skip
        x = load_tokens(x_ptr, start, end, D, columns, D, BT).to(tl.float32)
        w = tl.load(w_ptr + columns, mask=columns < D, other=0.0).to(tl.float32)
        dx = g * w[None, :] * rstd[:, None] - x * back[:, None]
        if HAS_DR:
            dx += load_tokens(dr_ptr, start, end, D, columns, D, BT).to(tl.float32)
        store_tokens(dx_ptr, start, end, D, columns, D, dx, BT)


@Kernel
@triton.jit
def _norm_backward(
    dh_ptr, ds_ptr, s_ptr, a_ptr, x_ptr, rstd_ptr, w_ptr, dr_ptr, dx_ptr, keys_ptr, spans_ptr, scales_ptr, blocks_ptr, a_stride,
    a_column0, a_step, matrix, SHARE: tl.constexpr, MATS: tl.constexpr, HAS_DR: tl.constexpr, D: tl.constexpr,
    WIDE: tl.constexpr, BT: tl.constexpr, BN: tl.constexpr, STAGES: tl.constexpr, DROP: tl.constexpr, RMAX: tl.constexpr,
):  # fmt: skip
    block = tl.program_id(2)
    span, start, end, row0, rank, limit = block_at(blocks_ptr, spans_ptr, block)
    start += tl.program_id(1) * BT
    scale = tl.load(scales_ptr + span)
    if start >= end:
        return
    low = tl.program_id(0) * SHARE
    high = tl.minimum(low + SHARE, D)
    if RMAX == 0:
        _backward(dh_ptr, ds_ptr, s_ptr, a_ptr, x_ptr, rstd_ptr, w_ptr, dr_ptr, dx_ptr, keys_ptr, a_stride, a_column0,
                  a_step, matrix, start, end, row0, rank, scale, limit, low, high, MATS, HAS_DR, D, WIDE, BT, BN, STAGES,
                  DROP, RMAX, 0)  # fmt: skip
    else:
        if rank == 0:
            _backward(dh_ptr, ds_ptr, s_ptr, a_ptr, x_ptr, rstd_ptr, w_ptr, dr_ptr, dx_ptr, keys_ptr, a_stride, a_column0,
                      a_step, matrix, start, end, row0, rank, scale, limit, low, high, MATS, HAS_DR, D, WIDE, BT, BN, STAGES,
                      DROP, RMAX, 0)  # fmt: skip
        elif rank <= 16:
            _backward(dh_ptr, ds_ptr, s_ptr, a_ptr, x_ptr, rstd_ptr, w_ptr, dr_ptr, dx_ptr, keys_ptr, a_stride, a_column0,
                      a_step, matrix, start, end, row0, rank, scale, limit, low, high, MATS, HAS_DR, D, WIDE, BT, BN, STAGES,
                      DROP, RMAX, 16)  # fmt: skip
        elif (rank <= 32) | (RMAX <= 32):
            _backward(dh_ptr, ds_ptr, s_ptr, a_ptr, x_ptr, rstd_ptr, w_ptr, dr_ptr, dx_ptr, keys_ptr, a_stride, a_column0,
                      a_step, matrix, start, end, row0, rank, scale, limit, low, high, MATS, HAS_DR, D, WIDE, BT, BN, STAGES,
                      DROP, RMAX, 32)  # fmt: skip
        else:
            _backward(dh_ptr, ds_ptr, s_ptr, a_ptr, x_ptr, rstd_ptr, w_ptr, dr_ptr, dx_ptr, keys_ptr, a_stride, a_column0,
                      a_step, matrix, start, end, row0, rank, scale, limit, low, high, MATS, HAS_DR, D, WIDE, BT, BN, STAGES,
                      DROP, RMAX, RMAX)  # fmt: skip


def residual_norm(
    x: torch.Tensor,
    y: torch.Tensor | None,
    s: torch.Tensor | None,
    adapters: torch.Tensor,
    b_column: int,
    weight: torch.Tensor,
    eps: float,
    table: WorkTable,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(x', h, rstd): x' = x + y + s @ Bᵀ and h = norm(x') * weight, all [T, D] in x's dtype; rstd [T] fp32.

    Without y this is the plain norm and x' is x itself. `b_column`: where B of this layer's matrix starts in `adapters`.
    """
    total = torch.empty_like(x) if y is not None else x
    h = torch.empty_like(x)
    rstd = torch.empty(x.shape[0], dtype=torch.float32, device=x.device)
    width = table.max_rank if s is not None else 0
    cfg = config("norm", width)
    _residual_norm[(BLOCK_T // cfg.block_t, table.blocks.shape[0])](
        x, y if y is not None else x, s if s is not None else x, adapters, weight, total, h, rstd, table.spans, table.blocks,
        adapters.stride(0), b_column, eps,
        HAS_Y=y is not None, D=x.shape[1], BT=cfg.block_t, BN=cfg.block_n, STAGES=cfg.stages, RMAX=width,
        num_warps=cfg.warps, num_stages=cfg.stages,
    )  # fmt: skip
    return total, h, rstd


def norm_backward(
    dh: torch.Tensor,
    ds: torch.Tensor | None,
    s: torch.Tensor | None,
    adapters: torch.Tensor,
    a_columns: tuple[int, ...],
    x: torch.Tensor,
    rstd: torch.Tensor,
    weight: torch.Tensor,
    dr: torch.Tensor | None,
    table: WorkTable,
    matrix: int = 0,
) -> torch.Tensor:
    """dx [T, D] = dr + the norm's gradient of (dh + Σ ds[:, m] @ A_m), for matrices whose input is the norm's output.

    s [T, M, RMAX]: those matrices' S from forward. `a_columns` are evenly spaced. matrix: the number of the first, for dropout.
    """
    dx = torch.empty_like(dh)
    width = table.max_rank if ds is not None else 0
    cfg = config("norm_backward", width)
    step = a_columns[1] - a_columns[0] if len(a_columns) > 1 else 0
    programs = table.blocks.shape[0] * BLOCK_T // cfg.block_t
    share = dh.shape[1]
    while programs < FILLING and share > 2 * cfg.block_n:
        programs, share = 2 * programs, -(-share // (2 * cfg.block_n)) * cfg.block_n
    _norm_backward[(-(-dh.shape[1] // share), BLOCK_T // cfg.block_t, table.blocks.shape[0])](
        dh, ds if ds is not None else dh, s if s is not None else dh, adapters, x, rstd, weight, dr if dr is not None else dh,
        dx, table.keys if table.keys is not None else dh, table.spans, table.scales, table.blocks, adapters.stride(0),
        a_columns[0] if a_columns else 0, step, matrix,
        SHARE=share, MATS=max(len(a_columns), 1), HAS_DR=dr is not None, D=dh.shape[1],
        WIDE=min(WIDE, triton.next_power_of_2(dh.shape[1])), BT=cfg.block_t, BN=cfg.block_n, STAGES=cfg.stages,
        DROP=table.keys is not None, RMAX=width, num_warps=cfg.warps, num_stages=cfg.stages,
    )  # fmt: skip
    return dx
