"""Weight gradients: dA = dSᵀ X and dB = Sᵀ dY of every adapter in one launch, written in fp32 to the arena's gradient rows.

One program owns one adapter's columns and walks that adapter's own tokens in order, in blocks counted from the adapter's first
token. So the summation order is fixed: two runs give the same bits, alone or packed. No atomics. Legend: S[T, M, RMAX] (or dS);
Y[T, columns] (X, or dY); grad[rows, W] fp32.
"""

import torch
import triton
import triton.language as tl

from grouped_lora.cached_launch import Kernel
from grouped_lora.dropout_mask import kept, load_keys
from grouped_lora.launch_configs import config
from grouped_lora.tiles import load_shrunk, load_tokens, mma, span_at, store_ranks
from grouped_lora.work_table import WorkTable


@triton.jit
def _seen(y, keys, matrix, columns, limit):
    return tl.where(kept(keys, matrix, columns, limit), y, 0.0)


@triton.jit
def _walk(
    s_ptr, y_ptr, g_ptr, s_stride, y_stride, g_stride, s_column, s_step, y_column, g_column, g_step, columns, width,
    start, end, row0, rank, accumulate, keys_ptr, limit, matrix, MATS: tl.constexpr, BT: tl.constexpr, BN: tl.constexpr,
    DROP: tl.constexpr, R: tl.constexpr,
):  # fmt: skip
    acc0 = tl.zeros((BN, R), tl.float32)
    acc1 = tl.zeros((BN, R), tl.float32)
    acc2 = tl.zeros((BN, R), tl.float32)
    for t in range(start, end, BT):
        # Columns lie along the matrix unit's long side, so that even a rank of 16 fills it.
        y = load_tokens(y_ptr + y_column, t, end, y_stride, columns, width, BT)
        if DROP:
            keys = load_keys(keys_ptr, t, end, BT)
        acc0 = mma(
            tl.trans(_seen(y, keys, matrix, columns, limit) if DROP else y),
            load_shrunk(s_ptr, s_stride, s_column, t, end, rank, BT, R), acc0,
        )  # fmt: skip
        if MATS > 1:
            acc1 = mma(
                tl.trans(_seen(y, keys, matrix + 1, columns, limit) if DROP else y),
                load_shrunk(s_ptr, s_stride, s_column + s_step, t, end, rank, BT, R), acc1,
            )  # fmt: skip
        if MATS > 2:
            acc2 = mma(
                tl.trans(_seen(y, keys, matrix + 2, columns, limit) if DROP else y),
                load_shrunk(s_ptr, s_stride, s_column + 2 * s_step, t, end, rank, BT, R), acc2,
            )  # fmt: skip
    store_ranks(g_ptr, g_stride, g_column, row0, rank, columns, width, tl.trans(acc0), accumulate, R)
    if MATS > 1:
        store_ranks(g_ptr, g_stride, g_column + g_step, row0, rank, columns, width, tl.trans(acc1), accumulate, R)
    if MATS > 2:
        store_ranks(g_ptr, g_stride, g_column + 2 * g_step, row0, rank, columns, width, tl.trans(acc2), accumulate, R)


@Kernel
@triton.jit
def _outer(
    s_ptr, y_ptr, g_ptr, keys_ptr, spans_ptr, s_stride, y_stride, g_stride, y_column0, y_column1, y_column2,
    g_column0, g_column1, g_column2, width0, width1, width2, tiles0, tiles1, matrix,
    SHARED: tl.constexpr, BT: tl.constexpr, BN: tl.constexpr, DROP: tl.constexpr, RMAX: tl.constexpr,
):  # fmt: skip
    tile = tl.program_id(0)
    span = tl.program_id(1)
    start, end, row0, rank, accumulate, limit = span_at(spans_ptr, span)
    if (start >= end) | (rank == 0):
        return
    mat = tl.where(tile < tiles0, 0, tl.where(tile < tiles0 + tiles1, 1, 2))
    tile -= tl.where(mat == 0, 0, tl.where(mat == 1, tiles0, tiles0 + tiles1))
    y_column = tl.where(mat == 0, y_column0, tl.where(mat == 1, y_column1, y_column2))
    g_column = tl.where(mat == 0, g_column0, tl.where(mat == 1, g_column1, g_column2))
    width = tl.where(mat == 0, width0, tl.where(mat == 1, width1, width2))
    columns = tile * BN + tl.arange(0, BN)
    g_step = g_column1 - g_column0
    if rank <= 16:
        _walk(s_ptr, y_ptr, g_ptr, s_stride, y_stride, g_stride, mat * RMAX, RMAX, y_column, g_column, g_step, columns, width,
              start, end, row0, rank, accumulate, keys_ptr, limit, matrix + mat, SHARED, BT, BN, DROP, 16)  # fmt: skip
    elif (rank <= 32) | (RMAX <= 32):
        _walk(s_ptr, y_ptr, g_ptr, s_stride, y_stride, g_stride, mat * RMAX, RMAX, y_column, g_column, g_step, columns, width,
              start, end, row0, rank, accumulate, keys_ptr, limit, matrix + mat, SHARED, BT, BN, DROP, 32)  # fmt: skip
    elif (rank <= 64) | (RMAX <= 64):
        _walk(s_ptr, y_ptr, g_ptr, s_stride, y_stride, g_stride, mat * RMAX, RMAX, y_column, g_column, g_step, columns, width,
              start, end, row0, rank, accumulate, keys_ptr, limit, matrix + mat, SHARED, BT, BN, DROP, 64)  # fmt: skip
    else:
        _walk(s_ptr, y_ptr, g_ptr, s_stride, y_stride, g_stride, mat * RMAX, RMAX, y_column, g_column, g_step, columns, width,
              start, end, row0, rank, accumulate, keys_ptr, limit, matrix + mat, SHARED, BT, BN, DROP, RMAX)  # fmt: skip


def outer(
    s: torch.Tensor,
    y: torch.Tensor,
    grad: torch.Tensor,
    table: WorkTable,
    columns: tuple[int, ...],
    widths: tuple[int, ...],
    y_columns: tuple[int, ...] | None = None,
    matrix: int | None = None,
) -> None:
    """grad[rows of each adapter, columns[m] : + widths[m]] = (or +=) s[:, m]ᵀ @ y over the adapter's own tokens, M <= 3
    matrices.

    Without `y_columns` all matrices read the same y; with them matrix m reads y[:, y_columns[m] : + widths[m]]. A flag in each
    span's table entry says whether it adds or overwrites. Only the exact ranks' rows are written. matrix: the number of the
    first matrix, where y is an adapter's input and dropout applies to it.
    """
    if table.max_rank == 0:
        return
    mats = len(columns)
    cfg = config("outer", table.max_rank)
    shared = mats if y_columns is None and table.max_rank <= 64 else 1
    starts = y_columns or (0,) * mats
    drop = table.keys is not None and matrix is not None
    tiles = [-(-width // cfg.block_n) for width in widths]

    def third(values: tuple[int, ...]) -> tuple[int, ...]:
        return (*values, *(values[-1],) * (3 - mats))

    _outer[(tiles[0] if shared > 1 else sum(tiles), table.spans.shape[0])](
        s, y, grad, table.keys if drop else y, table.spans, s.stride(0), y.stride(0), grad.stride(0), *third(starts),
        *third(columns), *third(widths), tiles[0], third(tuple(tiles))[1], matrix or 0,
        SHARED=shared, BT=cfg.block_t, BN=cfg.block_n, DROP=drop, RMAX=table.max_rank, num_warps=cfg.warps,
        num_stages=cfg.stages, maxnreg=cfg.registers,
    )  # fmt: skip
