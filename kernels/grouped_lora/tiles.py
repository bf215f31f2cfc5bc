"""Device functions that all kernels share: the product of two tiles, and loads and stores of an adapter's tiles.

Knows no layers, no matrices and no optimizers. Shapes: T tokens of one block, R ranks (a multiple of 16 that covers the
adapter's exact rank), N columns. Loads mask other adapters' rows and ranks beyond the exact one, so that a neighbour's NaN is
never multiplied, not even by zero.
"""

import os
from typing import Any, NamedTuple

import triton
import triton.language as tl

from grouped_lora import gradient

ROWS, COLUMNS = tl.constexpr(gradient.ROWS), tl.constexpr(gradient.COLUMNS)
# Up to this rank all of an adapter lies within 2^31 numbers of its first row, in arenas of up to gradient.WIDEST columns: for
# Llama-3.1-70B it has 12,943,360.
NEAR = tl.constexpr(gradient.NEAR)
# The interpreter multiplies the raw bits of bf16 tiles, so under it every operand is widened first.
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
WIDEN = tl.constexpr(INTERPRETED)


@triton.jit
def mma(left, right, acc):
    """acc + left @ right, accumulated in fp32; fp32 operands are multiplied exactly (no tf32)."""
    if WIDEN:
        return tl.dot(left.to(tl.float32), right.to(tl.float32), acc, input_precision="ieee")
    elif left.dtype == tl.float32:
        return tl.dot(left, right, acc, input_precision="ieee")
    else:
        return tl.dot(left, right, acc)


class WorkShare(NamedTuple):
    """One program's tokens of one adapter, in the order of work_table.SPAN_COLUMNS: first token, end, first arena row, exact
    rank (0: no adapter), whether gradients accumulate (add to what is there), dropout's threshold."""

    start: Any
    end: Any
    row0: Any
    rank: Any
    accumulate: Any
    drop_threshold: Any


@triton.jit
def share_of_span(spans_ptr, span):
    """All tokens of a span of the work table."""
    entry = spans_ptr + span * 6
    return WorkShare(
        tl.load(entry), tl.load(entry + 1), tl.load(entry + 2), tl.load(entry + 3), tl.load(entry + 4), tl.load(entry + 5)
    )


@triton.jit
def share_of_block(blocks_ptr, spans_ptr, block, skipped=0):
    """(the block's span, its tokens but for the first `skipped`) of a block of the work table."""
    entry = blocks_ptr + block * 3
    span = tl.load(entry)
    whole = share_of_span(spans_ptr, span)
    start = tl.load(entry + 1) + skipped
    return span, WorkShare(start, tl.load(entry + 2), whole.row0, whole.rank, whole.accumulate, whole.drop_threshold)


@triton.jit
def by_rank(body: tl.constexpr, operands, share, sizes, RCLASS: tl.constexpr, HANDLES_UNADAPTED: tl.constexpr):
    """Call body(operands, share, sizes, R) with the narrowest tile width R that holds the adapter's exact rank.

    RCLASS: the launch's class. Above 64 all its adapters have this width; else widths up to it are chosen from here. R is a
    constant of `body`, which the compiler makes once for each width. HANDLES_UNADAPTED: tokens without an adapter come here
    too, with R = 0; otherwise the caller has returned for them.
    """
    if RCLASS == 0:
        body(operands, share, sizes, 0)
    else:
        if HANDLES_UNADAPTED:
            if share.rank == 0:
                body(operands, share, sizes, 0)
            else:
                _adapted(body, operands, share, sizes, RCLASS)
        else:
            _adapted(body, operands, share, sizes, RCLASS)


@triton.jit
def _adapted(body: tl.constexpr, operands, share, sizes, RCLASS: tl.constexpr):
    if RCLASS == 32 or RCLASS == 64:
        if share.rank <= 16:
            body(operands, share, sizes, 16)
        else:
            _above_16(body, operands, share, sizes, RCLASS)
    else:
        body(operands, share, sizes, RCLASS)


@triton.jit
def _above_16(body: tl.constexpr, operands, share, sizes, RCLASS: tl.constexpr):
    if RCLASS == 32:
        body(operands, share, sizes, 32)
    else:
        if share.rank <= 32:
            body(operands, share, sizes, 32)
        else:
            body(operands, share, sizes, 64)


@triton.jit
def token_tile(ptr, start, stop, stride, columns, limit, BT: tl.constexpr, FAR: tl.constexpr = False):
    """Pointers and mask of the tile [T, N] of tokens start .. start + BT (below `stop`) and `columns` (below `limit`).

    The offset of the first token is a 64-bit scalar, those within the tile are 32-bit, or where FAR 64-bit: they stay the same
    from block to block.
    """
    rows = tl.arange(0, BT).to(tl.int64) if FAR else tl.arange(0, BT)
    base = ptr + tl.cast(start, tl.int64) * stride
    return base + (rows[:, None] * stride + columns[None, :]), (rows < stop - start)[:, None] & (columns < limit)[None, :]


@triton.jit
def load_tokens(ptr, start, stop, stride, columns, limit, BT: tl.constexpr):
    """The tile [T, N] of activations: zero beyond the adapter's tokens and beyond `limit` columns."""
    pointers, mask = token_tile(ptr, start, stop, stride, columns, limit, BT)
    return tl.load(pointers, mask=mask, other=0.0)


@triton.jit
def store_tokens(ptr, start, stop, stride, columns, limit, tile, BT: tl.constexpr):
    """Write the tile [T, N] to the adapter's own tokens."""
    pointers, mask = token_tile(ptr, start, stop, stride, columns, limit, BT)
    tl.store(pointers, tile, mask=mask)


@triton.jit
def eights(rank):
    """`rank` rounded up to 8: the stored width of S, zero beyond the exact rank. With a mask that may end anywhere the compiler
    moves S element by element; one that ends at a multiple of 8 allows 16-byte loads ahead of use."""
    return (rank + 7) // 8 * 8


@triton.jit
def load_shrunk(s_ptr, stride, column, start, stop, rank, BT: tl.constexpr, R: tl.constexpr):
    """The [T, R] tile of S or dS of one matrix: zero beyond the adapter's tokens and ranks."""
    return load_tokens(s_ptr + column, start, stop, stride, tl.arange(0, R), eights(rank), BT)


@triton.jit
def store_shrunk(s_ptr, start, stop, stride, rank, tile, BT: tl.constexpr, R: tl.constexpr):
    """Write the [T, R] tile of S or dS to the adapter's own tokens and ranks, rounded up to 8."""
    store_tokens(s_ptr, start, stop, stride, tl.arange(0, R), eights(rank), tile, BT)


@triton.jit
def load_ranks(w_ptr, stride, column, row0, rank, columns, limit, R: tl.constexpr):
    """The [R, N] tile of A or of B transposed, one arena row per rank: zero beyond the exact rank and beyond `limit`
    columns."""
    pointers, mask = token_tile(w_ptr + column, row0, row0 + rank, stride, columns, limit, R, R > NEAR)
    return tl.load(pointers, mask=mask, other=0.0)


@triton.jit
def store_ranks(grad_ptr, stride, column, row0, rank, columns, limit, tile, accumulate, R: tl.constexpr):
    """Write (or add, when `accumulate` is not 0) the fp32 tile [R, N], zero outside the gradient, to exactly `rank` rows of it.
    Returns the sum of the squares of what is there then."""
    pointers, mask = token_tile(grad_ptr + column, row0, row0 + rank, stride, columns, limit, R, R > NEAR)
    if accumulate != 0:
        tile += tl.load(pointers, mask=mask, other=0.0)
    tl.store(pointers, tile, mask=mask)
    return tl.sum(tl.sum(tile * tile, 1), 0)


@triton.jit
def store_squares(ptr, stride, column, row0, squares):
    """Write the sum of squares of the tile of an adapter's gradient that begins at `column` (gradient.py)."""
    tl.store(ptr + (row0 // ROWS).to(tl.int64) * stride + column // COLUMNS, squares)
