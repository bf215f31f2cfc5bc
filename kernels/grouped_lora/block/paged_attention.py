"""Attention of one new token a sequence to a paged key-value cache (Kwon et al. 2023): the decode step's attention.

A program attends for all query heads of one key head of one sequence, so each page is read once, in the running softmax of
FlashAttention-2. Every sum runs over a sequence's own pages in order: the bits do not depend on neighbours. What a page holds
beyond its sequence is never multiplied. Scores may have a soft cap (Gemma 2). Knows no rotary and no cache's owner.

Legend: B sequences, Hq and G query and key heads, D head size, P tokens of a page, M query rows of a tile.
"""

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from grouped_lora.block.nonlinearities import soft_capped
from grouped_lora.block.packed_attention import LOG2E, NO_WINDOW
from grouped_lora.cached_launch import Kernel
from grouped_lora.launch_configs import config
from grouped_lora.tiles import mma

LEAST_ROWS = 16  # of a product on the matrix unit


class _Page(NamedTuple):
    """One head's page of keys or values: its address, its first token's number, and the tokens that are the sequence's."""

    ptr: Any
    first: Any
    stop: Any


@triton.jit
def _load_page(page, D: tl.constexpr, BD: tl.constexpr, P: tl.constexpr):
    """The tile [P, BD]: zero beyond the sequence's tokens and beyond the head's columns."""
    rows = tl.arange(0, P)
    columns = tl.arange(0, BD)
    mask = (rows < page.stop - page.first)[:, None] & (columns < D)[None, :]
    return tl.load(page.ptr + rows[:, None] * D + columns[None, :], mask=mask, other=0.0)


@Kernel
@triton.jit
def _paged_attention(
    qkv_ptr, keys_ptr, values_ptr, out_ptr, tables_ptr, lengths_ptr, qkv_stride, table_stride, scale, cap, window,
    HQ: tl.constexpr, HKV: tl.constexpr, D: tl.constexpr, BD: tl.constexpr, P: tl.constexpr, M: tl.constexpr,
    CAPPED: tl.constexpr,
):  # fmt: skip
    sequence = tl.program_id(0)
    head = tl.program_id(1)
    length = tl.load(lengths_ptr + sequence)
    if length == 0:
        return
    GROUP: tl.constexpr = HQ // HKV
    rows = tl.arange(0, M)
    columns = tl.arange(0, BD)
    own = (rows < GROUP)[:, None] & (columns < D)[None, :]
    at = (head * GROUP + rows)[:, None] * D + columns[None, :]
    q = tl.load(qkv_ptr + sequence.to(tl.int64) * qkv_stride + at, mask=own, other=0.0)
    peak = tl.full((M,), float("-inf"), tl.float32)
    total = tl.zeros((M,), tl.float32)
    acc = tl.zeros((M, BD), tl.float32)
    first = tl.maximum(length - window, 0) // P
    for number in range(first, (length + P - 1) // P):
        page = tl.load(tables_ptr + sequence.to(tl.int64) * table_stride + number).to(tl.int64)
        start = (page * HKV + head) * (P * D)
        k = _load_page(_Page(keys_ptr + start, number * P, length), D, BD, P)
        s = mma(q, tl.trans(k), tl.zeros((M, P), tl.float32)) * (scale * LOG2E)
        if CAPPED:
            s = soft_capped(s, cap * LOG2E)
        token = number * P + tl.arange(0, P)
        s = tl.where(((token < length) & (token >= length - window))[None, :], s, float("-inf"))
        higher = tl.maximum(peak, tl.max(s, 1))
        p = tl.exp2(s - higher[:, None])
        fade = tl.exp2(peak - higher)
        v = _load_page(_Page(values_ptr + start, number * P, length), D, BD, P)
        total = total * fade + tl.sum(p, 1)
        acc = mma(p.to(v.dtype), v, acc * fade[:, None])
        peak = higher
    tl.store(out_ptr + sequence.to(tl.int64) * (HQ * D) + at, acc / total[:, None], mask=own)


def paged_attention(
    qkv: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    tables: torch.Tensor,
    lengths: torch.Tensor,
    heads: tuple[int, int],
    scale: float,
    window: int | None = None,
    cap: float | None = None,
) -> torch.Tensor:
    """softmax(scale q k^T) v of each sequence's newest token: [B, Hq D] from qkv [B, at least Hq D], of which the first
    columns, q, are read. With a cap scores become cap tanh(score / cap).

    keys, values [pages, G, P, D], contiguous, P a power of two of at least 16: the newest token's own are among them. tables
    int32 [B, pages at most]: each sequence's pages in order. lengths int32 [B]: its tokens; rows of 0 stay unwritten. With a
    window a token attends to the last `window` tokens, itself included.
    """
    hq, hkv = heads
    page, size = keys.shape[2:]
    out = torch.empty((qkv.shape[0], hq * size), dtype=qkv.dtype, device=qkv.device)
    cfg = config("paged_attention")
    _paged_attention[(qkv.shape[0], hkv)](
        qkv, keys, values, out, tables, lengths, qkv.stride(0), tables.stride(0), scale, 1.0 if cap is None else cap,
        NO_WINDOW if window is None else window,
        HQ=hq, HKV=hkv, D=size, BD=max(16, triton.next_power_of_2(size)), P=page,
        M=max(LEAST_ROWS, triton.next_power_of_2(hq // hkv)), CAPPED=cap is not None,
        num_warps=cfg.warps, num_stages=cfg.stages,
    )  # fmt: skip
    return out
