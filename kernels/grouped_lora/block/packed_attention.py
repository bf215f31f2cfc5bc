"""Causal attention over packed sequences of one flat token axis, tuned for many short sequences: the forward kernel, and the
tiles it shares with packed_attention_backward.py.

Works on qkv[T, (Hq + 2 Hkv) D] as the rotary kernel writes it. Grouped query heads read their K and V in place. Every sum runs
over a sequence's own blocks in order, so the bits do not depend on neighbours and two runs agree. (FlashAttention-2, Dao 2023,
algorithm 1, in blocks of 64 by 64.) Legend: M query rows, N key rows of a tile; D head size; lse [Hq, T] fp32.
"""

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from grouped_lora.block.nonlinearities import soft_capped
from grouped_lora.block.sequence_table import BLOCK, SequenceTable
from grouped_lora.cached_launch import Kernel
from grouped_lora.launch_configs import LARGE_HEAD, config
from grouped_lora.tiles import mma

LOG2E = tl.constexpr(1.4426950408889634)


class BlockSequence(NamedTuple):
    """A block's sequence: its first token, end, and span in the work table."""

    first: Any
    stop: Any
    span: Any


class Keys(NamedTuple):
    """Where the K of one head lies in qkv (V lies HKV heads after it), and how scores are formed."""

    ptr: Any
    width: Any
    column: Any
    scale: Any
    window: Any
    cap: Any


class HeadSizes(NamedTuple):
    """Heads of q and of k, head size D and its power of two BD, rows B of a tile, whether there is a window and a soft cap."""

    HQ: Any
    HKV: Any
    D: Any
    BD: Any
    B: Any
    WINDOWED: Any
    CAPPED: Any


@triton.jit
def sequence_of_block(blocks_ptr, block):
    """(the block's first token, its sequence). An empty entry's sequence ends at 0."""
    entry = blocks_ptr + block * 4
    return tl.load(entry), BlockSequence(tl.load(entry + 1), tl.load(entry + 2), tl.load(entry + 3))


@triton.jit
def load_rows(ptr, start, stop, stride, column, sizes):
    """The tile [B, BD] of one head: zero beyond the sequence and beyond the head's columns."""
    rows = tl.arange(0, sizes.B)
    columns = tl.arange(0, sizes.BD)
    base = ptr + tl.cast(start, tl.int64) * stride + column
    mask = (rows < stop - start)[:, None] & (columns < sizes.D)[None, :]
    return tl.load(base + rows[:, None] * stride + columns[None, :], mask=mask, other=0.0)


@triton.jit
def store_rows(ptr, start, stop, stride, column, tile, sizes):
    """Write the tile [B, BD] of one head to the sequence's own rows."""
    rows = tl.arange(0, sizes.B)
    columns = tl.arange(0, sizes.BD)
    base = ptr + tl.cast(start, tl.int64) * stride + column
    mask = (rows < stop - start)[:, None] & (columns < sizes.D)[None, :]
    tl.store(base + rows[:, None] * stride + columns[None, :], tile, mask=mask)


@triton.jit
def first_key(start, sequence, window, sizes):
    """The first block of keys within the window of the query block at `start`."""
    low = tl.maximum(sequence.first, start - window + 1)
    return sequence.first + (low - sequence.first) // sizes.B * sizes.B


@triton.jit
def visible(q_start, k_start, stop, window, sizes):
    """[M, N] mask: the key lies within the sequence, not after the query, and within the query's window."""
    q = q_start + tl.arange(0, sizes.B)[:, None]
    k = k_start + tl.arange(0, sizes.B)[None, :]
    return (k <= q) & (k < stop) & (q - k < window)


@triton.jit
def scores(products, keys, sizes):
    """Scores in base 2 of products q k^T, soft-capped where the family does so (Gemma 2)."""
    s = products * (keys.scale * LOG2E)
    if sizes.CAPPED:
        s = soft_capped(s, keys.cap * LOG2E)
    return s


@triton.jit
def _attend(q, keys, start, at, stop, peak, total, acc, sizes, MASKED: tl.constexpr):
    """Update the running maximum, sum and output with one block of keys."""
    k = load_rows(keys.ptr, at, stop, keys.width, keys.column, sizes)
    s = scores(mma(q, tl.trans(k), tl.zeros((sizes.B, sizes.B), tl.float32)), keys, sizes)
    if MASKED:
        s = tl.where(visible(start, at, stop, keys.window, sizes), s, float("-inf"))
    higher = tl.maximum(peak, tl.max(s, 1))
    safe = tl.where(higher == float("-inf"), 0.0, higher)
    p = tl.exp2(s - safe[:, None])
    fade = tl.exp2(peak - safe)
    v = load_rows(keys.ptr, at, stop, keys.width, keys.column + sizes.HKV * sizes.D, sizes)
    return higher, total * fade + tl.sum(p, 1), mma(p.to(v.dtype), v, acc * fade[:, None])


class _Out(NamedTuple):
    """Where one query head's output and log-sum-exp go."""

    out_ptr: Any
    lse_ptr: Any
    head: Any
    T: Any


@triton.jit
def _forward(out, keys, start, sequence, sizes):
    B: tl.constexpr = sizes.B
    stop = sequence.stop
    q = load_rows(keys.ptr, start, stop, keys.width, out.head * sizes.D, sizes)
    peak = tl.full((B,), float("-inf"), tl.float32)
    total = tl.zeros((B,), tl.float32)
    acc = tl.zeros((B, sizes.BD), tl.float32)
    for at in range(first_key(start, sequence, keys.window, sizes), start, B):
        peak, total, acc = _attend(q, keys, start, at, stop, peak, total, acc, sizes, sizes.WINDOWED)
    peak, total, acc = _attend(q, keys, start, start, stop, peak, total, acc, sizes, True)
    rows = start + tl.arange(0, B)
    store_rows(out.out_ptr, start, stop, sizes.HQ * sizes.D, out.head * sizes.D, acc / total[:, None], sizes)
    tl.store(out.lse_ptr + out.head.to(tl.int64) * out.T + rows, peak + tl.log2(total), mask=rows < stop)


@Kernel
@triton.jit
def _attention(
    qkv_ptr, out_ptr, lse_ptr, blocks_ptr, T, scale, window, cap, HQ: tl.constexpr, HKV: tl.constexpr, D: tl.constexpr,
    BD: tl.constexpr, B: tl.constexpr, WINDOWED: tl.constexpr, CAPPED: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(1)
    start, sequence = sequence_of_block(blocks_ptr, tl.program_id(0))
    if sequence.stop == 0:
        return
    keys = Keys(qkv_ptr, (HQ + 2 * HKV) * D, (HQ + head // (HQ // HKV)) * D, scale, window, cap)
    _forward(_Out(out_ptr, lse_ptr, head, T), keys, start, sequence, HeadSizes(HQ, HKV, D, BD, B, WINDOWED, CAPPED))


NO_WINDOW = 1 << 30


def attention(
    qkv: torch.Tensor,
    table: SequenceTable,
    heads: tuple[int, int],
    scale: float,
    window: int | None = None,
    cap: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(out [T, Hq D], lse [Hq, T] fp32 in base 2) of qkv [T, (Hq + 2 Hkv) D], contiguous. Rows outside every sequence stay
    unwritten.

    With a window, a token attends to itself and to the window - 1 tokens before it. With a cap scores become cap tanh(score /
    cap).
    """
    hq, hkv = heads
    size = qkv.shape[1] // (hq + 2 * hkv)
    out = torch.empty((qkv.shape[0], hq * size), dtype=qkv.dtype, device=qkv.device)
    lse = torch.empty((hq, qkv.shape[0]), dtype=torch.float32, device=qkv.device)
    cfg = config("attention" if size <= LARGE_HEAD else "attention_large")
    _attention[(table.blocks.shape[0], hq)](
        qkv, out, lse, table.blocks, qkv.shape[0], scale, NO_WINDOW if window is None else window, 1.0 if cap is None else cap,
        HQ=hq, HKV=hkv, D=size, BD=max(16, triton.next_power_of_2(size)), B=BLOCK, WINDOWED=window is not None,
        CAPPED=cap is not None, num_warps=cfg.warps, num_stages=cfg.stages,
    )  # fmt: skip
    return out, lse
