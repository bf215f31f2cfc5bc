"""Shrink: S = scale · X Wᵀ for every adapter, one launch a rank class, from features down to ranks.

Forward: S = s X Aᵀ (all matrices that read the same X share one read of it). Backward: dS = s dY Bᵀ, with B as stored, [R, N]
(each matrix has its own columns of dY). Knows no meaning of ranks. Legend: X[T, K] activations; W rows of the arena, one per
rank, K columns; S[T, M, RMAX] for M matrices, in X's dtype, the scale folded in. Ranks beyond an adapter's own (rounded up to
8) stay unwritten.
"""

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from grouped_lora.cached_launch import Kernel
from grouped_lora.dropout_mask import keep_mask, load_keys
from grouped_lora.launch_configs import config
from grouped_lora.tiles import by_rank, load_ranks, load_shrunk, load_tokens, mma, share_of_block, store_shrunk
from grouped_lora.work_table import BLOCK_T, NARROW, WorkTable

# Longer sums are split into partial sums over this many features, so that a step of few tokens still fills the chip; the
# split depends on the matrix alone, never on the tokens.
SPLIT_K = 2048


class _Product(NamedTuple):
    """x's tokens and one to three matrices' A or B, `w_step` and `s_step` columns apart; features first .. end of them."""

    x_ptr: Any
    x_stride: Any
    w_ptr: Any
    w_stride: Any
    w_step: Any
    s_ptr: Any
    s_stride: Any
    s_step: Any
    keys_ptr: Any
    matrix: Any
    first: Any
    end: Any
    scale: Any


class _Sizes(NamedTuple):
    MATS: Any
    BK: Any
    BT: Any
    DROP: Any


@triton.jit
def _seen(x, keys, matrix, features, drop_threshold, DROP: tl.constexpr):
    if DROP:
        x = tl.where(keep_mask(keys, matrix, features, drop_threshold), x, 0.0)
    return x


@triton.jit
def _product(p, share, sizes, R: tl.constexpr):
    keys = load_keys(p.keys_ptr, share.start, share.end, sizes.BT) if sizes.DROP else 0
    acc0 = tl.zeros((sizes.BT, R), tl.float32)
    acc1 = tl.zeros((sizes.BT, R), tl.float32)
    acc2 = tl.zeros((sizes.BT, R), tl.float32)
    for k in range(p.first, p.end, sizes.BK):
        features = k + tl.arange(0, sizes.BK)
        x = load_tokens(p.x_ptr, share.start, share.end, p.x_stride, features, p.end, sizes.BT)
        w = load_ranks(p.w_ptr, p.w_stride, 0, share.row0, share.rank, features, p.end, R)
        acc0 = mma(_seen(x, keys, p.matrix, features, share.drop_threshold, sizes.DROP), tl.trans(w), acc0)
        if sizes.MATS > 1:
            w = load_ranks(p.w_ptr, p.w_stride, p.w_step, share.row0, share.rank, features, p.end, R)
            acc1 = mma(_seen(x, keys, p.matrix + 1, features, share.drop_threshold, sizes.DROP), tl.trans(w), acc1)
        if sizes.MATS > 2:
            w = load_ranks(p.w_ptr, p.w_stride, 2 * p.w_step, share.row0, share.rank, features, p.end, R)
            acc2 = mma(_seen(x, keys, p.matrix + 2, features, share.drop_threshold, sizes.DROP), tl.trans(w), acc2)
    store_shrunk(p.s_ptr, share.start, share.end, p.s_stride, share.rank, acc0 * p.scale, sizes.BT, R)
    if sizes.MATS > 1:
        store_shrunk(p.s_ptr + p.s_step, share.start, share.end, p.s_stride, share.rank, acc1 * p.scale, sizes.BT, R)
    if sizes.MATS > 2:
        store_shrunk(p.s_ptr + 2 * p.s_step, share.start, share.end, p.s_stride, share.rank, acc2 * p.scale, sizes.BT, R)


@Kernel
@triton.jit(do_not_specialize=["matrix"])
def _shrink(
    x_ptr, w_ptr, out_ptr, keys_ptr, spans_ptr, scales_ptr, blocks_ptr, x_stride, w_stride, out_stride, split_stride,
    x_column0, x_column1, x_column2, w_column0, w_column1, w_column2, k0, k1, k2, matrix,
    MATS: tl.constexpr, SPLIT: tl.constexpr, BK: tl.constexpr, BT: tl.constexpr, DROP: tl.constexpr, RMAX: tl.constexpr,
    RCLASS: tl.constexpr,
):  # fmt: skip
    mat = tl.program_id(1)  # with MATS > 1 one program serves all matrices, and mat is 0
    split = tl.program_id(2)
    span, share = share_of_block(blocks_ptr, spans_ptr, tl.program_id(0))
    scale = tl.load(scales_ptr + span)
    if (share.start >= share.end) | (share.rank == 0):
        return
    x_column = tl.where(mat == 0, x_column0, tl.where(mat == 1, x_column1, x_column2))
    w_column = tl.where(mat == 0, w_column0, tl.where(mat == 1, w_column1, w_column2))
    k = tl.where(mat == 0, k0, tl.where(mat == 1, k1, k2))
    first = split * SPLIT
    # A split past a narrower matrix's end runs no iteration and writes zeros, since the sum reads every split.
    end = tl.minimum(k, first + SPLIT)
    s_ptr = out_ptr + split.to(tl.int64) * split_stride + mat * RMAX
    operands = _Product(
        x_ptr + x_column, x_stride, w_ptr + w_column, w_stride, w_column1 - w_column0, s_ptr, out_stride, RMAX, keys_ptr,
        matrix + mat, first, end, scale,
    )  # fmt: skip
    by_rank(_product, operands, share, _Sizes(MATS, BK, BT, DROP), RCLASS, False)


@Kernel
@triton.jit
def _sum_partials(partials_ptr, out_ptr, spans_ptr, blocks_ptr, split_stride, SPLITS: tl.constexpr, MATS: tl.constexpr,
                BT: tl.constexpr, RMAX: tl.constexpr, RCLASS: tl.constexpr):  # fmt: skip
    mat = tl.program_id(1)
    _, share = share_of_block(blocks_ptr, spans_ptr, tl.program_id(0), tl.program_id(2) * BT)
    start, end, rank = share.start, share.end, share.rank
    if (start >= end) | (rank == 0):
        return
    total = tl.zeros((BT, RCLASS), tl.float32)
    for split in tl.static_range(SPLITS):
        total += load_shrunk(
            partials_ptr + split * tl.cast(split_stride, tl.int64), MATS * RMAX, mat * RMAX, start, end, rank, BT, RCLASS
        )
    store_shrunk(out_ptr + mat * RMAX, start, end, MATS * RMAX, rank, total, BT, RCLASS)


def sum_partials(partials: torch.Tensor, table: WorkTable, dtype: torch.dtype, out: torch.Tensor | None = None) -> torch.Tensor:
    """S [T, M, RMAX]: the sum over partials [splits, T, M, RMAX] fp32, in order, up to each adapter's rank."""
    count, tokens, mats, rmax = partials.shape
    s = torch.empty((tokens, mats, rmax), dtype=dtype, device=partials.device) if out is None else out
    cfg = config("sum_partials")
    for part in table.adapted:
        _sum_partials[(part.blocks.shape[0], mats, BLOCK_T // cfg.block_t)](
            partials, s, part.spans, part.blocks, tokens * mats * rmax,
            SPLITS=count, MATS=mats, BT=cfg.block_t, RMAX=rmax, RCLASS=part.rank_class, num_warps=cfg.warps,
        )  # fmt: skip
    return s


def shrink(
    x: torch.Tensor,
    adapters: torch.Tensor,
    table: WorkTable,
    starts: tuple[int, ...],
    widths: tuple[int, ...],
    x_starts: tuple[int, ...] | None = None,
    out: torch.Tensor | None = None,
    dropout_matrix: int | None = None,
) -> torch.Tensor:
    """S[T, M, RMAX] in x's dtype for M <= 3 matrices.

    `adapters` [rows, C] is the arena's compute copy of one layer; matrix m is its columns [starts[m], starts[m] + widths[m]).
    Without `x_starts` all matrices read the same x[T, K]; with them matrix m reads x[:, x_starts[m] : + widths[m]].
    dropout_matrix: the number of the first matrix, where x is an adapter's input, to which dropout applies; None: no
    dropout here.
    """
    mats = len(starts)
    shape = (x.shape[0], mats, table.max_rank)
    s = torch.empty(shape, dtype=x.dtype, device=x.device) if out is None else out
    if table.max_rank == 0:
        return s
    x_at = x_starts or (0,) * mats
    splits = -(-max(widths) // SPLIT_K) if max(widths) > 2 * SPLIT_K else 1
    target = s if splits == 1 else torch.empty((splits, *shape), dtype=torch.float32, device=x.device)
    drop = table.keys is not None and dropout_matrix is not None

    def triple(values: tuple[int, ...]) -> tuple[int, ...]:
        return (*values, *(values[-1],) * (3 - mats))

    for part in table.adapted:
        # Three accumulators of a wide rank do not fit in registers: then each matrix is its own item and reads x again.
        mats_per_program = mats if x_starts is None and part.rank_class <= NARROW else 1
        cfg = config(f"shrink_{mats_per_program}", part.rank_class)
        _shrink[(part.blocks.shape[0], mats // mats_per_program, splits)](
            x, adapters, target, table.keys if drop else x, part.spans, part.scales, part.blocks, x.stride(0),
            adapters.stride(0), mats * table.max_rank, x.shape[0] * mats * table.max_rank, *triple(x_at), *triple(starts),
            *triple(widths), dropout_matrix or 0, MATS=mats_per_program, SPLIT=SPLIT_K if splits > 1 else 1 << 20,
            BK=cfg.block_n * 2 // x.element_size(), BT=BLOCK_T, DROP=drop, RMAX=table.max_rank, RCLASS=part.rank_class,
            num_warps=cfg.warps, num_stages=cfg.stages,
        )  # fmt: skip
    return s if splits == 1 else sum_partials(target, table, x.dtype, s)
