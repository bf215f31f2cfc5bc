"""Device functions that every kernel here shares: the matrix product of two tiles and how an adapter's tiles are loaded.

Knows nothing of layers, of which matrix a tile belongs to, or of optimizers. Shapes: T tokens of one block, R ranks (a multiple
of 16 that covers the adapter's exact rank), N columns. Rows of other adapters and ranks beyond the exact one are masked at the
load, so that a neighbour's NaN is never multiplied, not even by zero.
"""

import os

import triton
import triton.language as tl

# The interpreter multiplies the raw bits of bf16 tiles, so there every operand is widened first.
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


@triton.jit
def load_shrunk(s_ptr, stride, column, tokens, end, rank, R: tl.constexpr):
    """The [T, R] tile of S or dS of one matrix: zero beyond the adapter's tokens and ranks."""
    ranks = tl.arange(0, R)
    offsets = tokens.to(tl.int64)[:, None] * stride + column + ranks[None, :]
    return tl.load(s_ptr + offsets, mask=(tokens < end)[:, None] & (ranks < rank)[None, :], other=0.0)


@triton.jit
def load_ranks(w_ptr, stride, column, row0, rank, columns, limit, R: tl.constexpr):
    """The [R, N] tile of A or of B transposed, one arena row per rank: zero beyond the exact rank and beyond `limit` columns."""
    ranks = tl.arange(0, R)
    offsets = (row0 + ranks).to(tl.int64)[:, None] * stride + column + columns[None, :]
    return tl.load(w_ptr + offsets, mask=(ranks < rank)[:, None] & (columns < limit)[None, :], other=0.0)


@triton.jit
def store_ranks(g_ptr, stride, column, row0, rank, columns, limit, tile, accumulate, R: tl.constexpr):
    """Write (or add, when `accumulate` is not 0) the fp32 tile [R, N] to exactly `rank` rows of the gradient."""
    ranks = tl.arange(0, R)
    pointers = g_ptr + (row0 + ranks).to(tl.int64)[:, None] * stride + column + columns[None, :]
    mask = (ranks < rank)[:, None] & (columns < limit)[None, :]
    if accumulate != 0:
        tile += tl.load(pointers, mask=mask, other=0.0)
    tl.store(pointers, tile, mask=mask)
