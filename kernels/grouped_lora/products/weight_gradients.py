"""Weight gradients: dA = dSᵀ X and dB = Sᵀ dY of every adapter, one launch per rank class, written in fp32 to the arena's
gradient rows.

Makes dA and dB of q, k, v and o, dA of gate and up, and dB of down. The other three of a layer's fourteen, dB of gate and up
and dA of down, are made in block/swiglu.py, which has their factors in registers.

One program owns a tile of one adapter's columns and walks that adapter's own tokens in order, in blocks counted from the
adapter's first token. So the summation order is fixed: two runs give the same bits, alone or packed. No atomics. Legend:
S[T, M, RMAX] (or dS); Y[T, columns] (X, or dY); grad[rows, C] fp32, one layer's columns of the arena's. S and dS carry the
span's scale (`Span.kept_scale`).
"""

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from grouped_lora.cached_launch import Kernel
from grouped_lora.dropout_mask import keep_mask, load_keys
from grouped_lora.gradient import Gradient
from grouped_lora.launch_configs import config
from grouped_lora.tiles import by_rank, load_shrunk, load_tokens, mma, share_of_span, store_ranks, store_squares
from grouped_lora.work_table import NARROW, WorkTable


class _Walk(NamedTuple):
    """s: S of one to three matrices, `s_step` columns apart; y: what they share; grad: their gradients, `grad_step` columns
    apart; columns: this program's, of y and of each gradient, from `first` of the layer's columns."""

    s_ptr: Any
    s_stride: Any
    s_step: Any
    y_ptr: Any
    y_stride: Any
    grad_ptr: Any
    grad_stride: Any
    grad_step: Any
    squares_ptr: Any
    squares_stride: Any
    first: Any
    columns: Any
    width: Any
    keys_ptr: Any
    matrix: Any


class _Sizes(NamedTuple):
    MATS: Any
    BT: Any
    BN: Any
    DROP: Any
    SQUARES: Any


@triton.jit
def _accumulate_tile(p, share, t, y, keys, acc, place: tl.constexpr, sizes, R: tl.constexpr):
    """acc [N, R] plus yᵀ s of the matrix at `place`."""
    if sizes.DROP:
        y = tl.where(keep_mask(keys, p.matrix + place, p.columns, share.drop_threshold), y, 0.0)
    # Columns lie along the matrix unit's long side, so that even a rank of 16 fills it.
    s = load_shrunk(p.s_ptr, p.s_stride, place * p.s_step, t, share.end, share.rank, sizes.BT, R)
    return mma(tl.trans(y), s, acc)


@triton.jit
def _store_tile(p, share, acc, place: tl.constexpr, R: tl.constexpr):
    return store_ranks(
        p.grad_ptr, p.grad_stride, place * p.grad_step, share.row0, share.rank, p.columns, p.width, tl.trans(acc),
        share.accumulate, R,
    )  # fmt: skip


@triton.jit
def _sum_over_tokens(p, share, sizes, R: tl.constexpr):
    acc0 = tl.zeros((sizes.BN, R), tl.float32)
    acc1 = tl.zeros((sizes.BN, R), tl.float32)
    acc2 = tl.zeros((sizes.BN, R), tl.float32)
    for t in range(share.start, share.end, sizes.BT):
        y = load_tokens(p.y_ptr, t, share.end, p.y_stride, p.columns, p.width, sizes.BT)
        keys = load_keys(p.keys_ptr, t, share.end, sizes.BT) if sizes.DROP else 0
        acc0 = _accumulate_tile(p, share, t, y, keys, acc0, 0, sizes, R)
        if sizes.MATS > 1:
            acc1 = _accumulate_tile(p, share, t, y, keys, acc1, 1, sizes, R)
        if sizes.MATS > 2:
            acc2 = _accumulate_tile(p, share, t, y, keys, acc2, 2, sizes, R)
    squares = _store_tile(p, share, acc0, 0, R)
    if sizes.MATS > 1:
        squares += _store_tile(p, share, acc1, 1, R)
    if sizes.MATS > 2:
        squares += _store_tile(p, share, acc2, 2, R)
    if sizes.SQUARES:
        store_squares(p.squares_ptr, p.squares_stride, p.first, share.row0, squares)


@Kernel
@triton.jit(do_not_specialize=["matrix"])
def _weight_gradient(
    s_ptr, y_ptr, grad_ptr, squares_ptr, keys_ptr, spans_ptr, s_stride, y_stride, grad_stride, squares_stride, y_column0,
    y_column1, y_column2, grad_column0, grad_column1, grad_column2, width0, width1, width2, tiles0, tiles1, matrix,
    MATS: tl.constexpr, BT: tl.constexpr, BN: tl.constexpr, DROP: tl.constexpr, SQUARES: tl.constexpr, RMAX: tl.constexpr,
    RCLASS: tl.constexpr,
):  # fmt: skip
    tile = tl.program_id(0)
    share = share_of_span(spans_ptr, tl.program_id(1))
    if (share.start >= share.end) | (share.rank == 0):
        return
    mat = tl.where(tile < tiles0, 0, tl.where(tile < tiles0 + tiles1, 1, 2))
    tile -= tl.where(mat == 0, 0, tl.where(mat == 1, tiles0, tiles0 + tiles1))
    y_column = tl.where(mat == 0, y_column0, tl.where(mat == 1, y_column1, y_column2))
    grad_column = tl.where(mat == 0, grad_column0, tl.where(mat == 1, grad_column1, grad_column2))
    width = tl.where(mat == 0, width0, tl.where(mat == 1, width1, width2))
    operands = _Walk(
        s_ptr + mat * RMAX, s_stride, RMAX, y_ptr + y_column, y_stride, grad_ptr + grad_column, grad_stride,
        grad_column1 - grad_column0, squares_ptr, squares_stride, grad_column + tile * BN, tile * BN + tl.arange(0, BN), width,
        keys_ptr, matrix + mat,
    )  # fmt: skip
    by_rank(_sum_over_tokens, operands, share, _Sizes(MATS, BT, BN, DROP, SQUARES), RCLASS, False)


def weight_gradient(
    s: torch.Tensor,
    y: torch.Tensor,
    grad: Gradient,
    table: WorkTable,
    starts: tuple[int, ...],
    widths: tuple[int, ...],
    y_starts: tuple[int, ...] | None = None,
    dropout_matrix: int | None = None,
) -> None:
    """grad.rows[rows of each adapter, starts[m] : + widths[m]] = (or +=) s[:, m]ᵀ @ y over the adapter's own tokens, M <= 3
    matrices; and their sums of squares, where `grad` has them.

    Without `y_starts` all matrices read the same y; with them matrix m reads y[:, y_starts[m] : + widths[m]]. The column
    `accumulate` of the work table's spans says whether a span adds or overwrites. Only the exact ranks' rows are written.
    dropout_matrix: the number of the first matrix, where y is an adapter's input, to which dropout applies; None: no
    dropout here.
    """
    mats, squares = len(starts), grad.squares if grad.squares is not None else grad.rows
    y_at = y_starts or (0,) * mats
    drop = table.keys is not None and dropout_matrix is not None

    def triple(values: tuple[int, ...]) -> tuple[int, ...]:
        return (*values, *(values[-1],) * (3 - mats))

    for part in table.adapted:
        cfg = config("weight_gradient", part.rank_class)
        # matrices per program: those that share a read of y
        mats_per_program = mats if y_starts is None and part.rank_class <= NARROW else 1
        columns = cfg.block_n * 2 // y.element_size() if part.rank_class <= NARROW else cfg.block_n
        tiles = tuple(-(-width // columns) for width in widths)
        _weight_gradient[(tiles[0] if mats_per_program > 1 else sum(tiles), part.spans.shape[0])](
            s, y, grad.rows, squares, table.keys if drop else y, part.spans, s.stride(0),
            y.stride(0), grad.rows.stride(0), squares.stride(0), *triple(y_at), *triple(starts),
            *triple(widths), tiles[0], triple(tiles)[1], dropout_matrix or 0,
            MATS=mats_per_program, BT=cfg.block_t, BN=columns, DROP=drop, SQUARES=grad.squares is not None,
            RMAX=table.max_rank, RCLASS=part.rank_class, num_warps=cfg.warps, num_stages=cfg.stages, maxnreg=cfg.registers,
        )  # fmt: skip
