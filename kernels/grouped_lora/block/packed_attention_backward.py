"""Attention's backward: dq, then dk and dv, from the log-sum-exp that packed_attention.py's forward kept.

Writes one dqkv of qkv's layout and sums a K head's query heads in registers. It also adds the gradient from the adapters of the
product behind attention, at its first read of the incoming gradient. (FlashAttention-2, Dao 2023, algorithm 2.) Legend: M query
rows, N key rows of a tile; D head size; lse, delta [Hq, T] fp32.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from grouped_lora.block.packed_attention import (
    LOG2E,
    NO_WINDOW,
    HeadSizes,
    Keys,
    first_key,
    load_rows,
    scores,
    sequence_of_block,
    store_rows,
    visible,
)
from grouped_lora.block.sequence_table import BLOCK, SequenceTable
from grouped_lora.cached_launch import Kernel
from grouped_lora.dropout_mask import keep_mask, load_keys
from grouped_lora.launch_configs import LARGE_HEAD, config
from grouped_lora.tiles import WorkShare, by_rank, load_ranks, load_shrunk, mma, share_of_span, token_tile
from grouped_lora.work_table import WorkTable


@dataclass(frozen=True)
class AdapterInputGradient:
    """What adapters add to the incoming gradient: ds [T, 1, RMAX] @ their A, in one layer's `adapters` from `column` on.

    matrix: the number of the product behind attention, to whose input dropout applies.
    """

    ds: torch.Tensor
    adapters: torch.Tensor
    column: int
    table: WorkTable
    matrix: int


class _Join(NamedTuple):
    """One head's columns of the incoming gradient, from `local` on, and the dS and A that add to them."""

    dout_ptr: Any
    local: Any
    ds_ptr: Any
    a_ptr: Any
    a_stride: Any
    keys_ptr: Any
    matrix: Any


class _JoinSizes(NamedTuple):
    heads: Any
    RMAX: Any
    DROP: Any


@triton.jit
def _join(p, share, sizes, R: tl.constexpr):
    """Add the adapter's part to dout, in place; by parts of a large head, since all of A at rank 256 is 128 KB."""
    B: tl.constexpr = sizes.heads.B
    BD: tl.constexpr = sizes.heads.BD
    WIDTH: tl.constexpr = BD if BD < 128 else 128
    ds = load_shrunk(p.ds_ptr, sizes.RMAX, 0, share.start, share.end, share.rank, B, R)
    for first in tl.static_range(0, BD, WIDTH):
        _join_columns(p, share, sizes, ds, first, WIDTH, R)


@triton.jit
def _join_columns(p, share, sizes, ds, first: tl.constexpr, WIDTH: tl.constexpr, R: tl.constexpr):
    """The columns of the head from `first` on."""
    B: tl.constexpr = sizes.heads.B
    stride: tl.constexpr = sizes.heads.HQ * sizes.heads.D
    left: tl.constexpr = sizes.heads.D - first
    local = p.local + first
    columns = tl.arange(0, WIDTH)
    a = load_ranks(p.a_ptr, p.a_stride, local, share.row0, share.rank, columns, left, R)
    y = mma(ds, a, tl.zeros((B, WIDTH), tl.float32))
    if sizes.DROP:
        keys = load_keys(p.keys_ptr, share.start, share.end, B)
        y = tl.where(keep_mask(keys, p.matrix, columns + local, share.drop_threshold), y, 0.0)
    pointers, mask = token_tile(p.dout_ptr + local, share.start, share.end, stride, columns, left, B)
    dout = tl.load(pointers, mask=mask, other=0.0)
    tl.store(pointers, (y + dout.to(tl.float32)).to(dout.dtype), mask=mask)


@triton.jit
def _cap_slope(s, keys):
    """The derivative of capped scores s by the scores before the cap."""
    t = s / (keys.cap * LOG2E)
    return 1.0 - t * t


@triton.jit
def _dq_of(q, dout, lse, delta, acc, keys, start, at, stop, sizes, MASKED: tl.constexpr):
    """Only blocks on the diagonal or at a window's edge need the mask: a block before the diagonal is full and precedes every
    query."""
    k = load_rows(keys.ptr, at, stop, keys.width, keys.column, sizes)
    v = load_rows(keys.ptr, at, stop, keys.width, keys.column + sizes.HKV * sizes.D, sizes)
    s = scores(mma(q, tl.trans(k), tl.zeros((sizes.B, sizes.B), tl.float32)), keys, sizes)
    p = tl.exp2(s - lse[:, None])
    if MASKED:
        p = tl.where(visible(start, at, stop, keys.window, sizes), p, 0.0)
    ds = p * (mma(dout, tl.trans(v), tl.zeros((sizes.B, sizes.B), tl.float32)) - delta[:, None])
    if sizes.CAPPED:
        ds *= _cap_slope(s, keys)
    return mma(ds.to(k.dtype), k, acc)


class _Queries(NamedTuple):
    """One query head's incoming gradient, and the sums kept of its rows."""

    dout_ptr: Any
    lse_ptr: Any
    delta_ptr: Any
    head: Any
    T: Any


@triton.jit
def _backward_of_queries(queries, keys, out_ptr, dqkv_ptr, start, sequence, sizes):
    """dq of one block of queries, and their delta."""
    B: tl.constexpr = sizes.B
    stop, column = sequence.stop, queries.head * sizes.D
    q = load_rows(keys.ptr, start, stop, keys.width, column, sizes)
    dout = load_rows(queries.dout_ptr, start, stop, sizes.HQ * sizes.D, column, sizes)
    out = load_rows(out_ptr, start, stop, sizes.HQ * sizes.D, column, sizes)
    delta = tl.sum(dout.to(tl.float32) * out.to(tl.float32), 1)
    rows = start + tl.arange(0, B)
    lse = tl.load(queries.lse_ptr + queries.head.to(tl.int64) * queries.T + rows, mask=rows < stop, other=0.0)
    tl.store(queries.delta_ptr + queries.head.to(tl.int64) * queries.T + rows, delta, mask=rows < stop)
    acc = tl.zeros((B, sizes.BD), tl.float32)
    for at in range(first_key(start, sequence, keys.window, sizes), start, B):
        acc = _dq_of(q, dout, lse, delta, acc, keys, start, at, stop, sizes, sizes.WINDOWED)
    acc = _dq_of(q, dout, lse, delta, acc, keys, start, start, stop, sizes, True)
    store_rows(dqkv_ptr, start, stop, keys.width, column, acc * keys.scale, sizes)


@Kernel
@triton.jit(do_not_specialize=["matrix"])
def _dq(
    qkv_ptr, out_ptr, dout_ptr, lse_ptr, delta_ptr, dqkv_ptr, blocks_ptr, T, scale, window, cap, ds_ptr, w_ptr, keys_ptr,
    spans_ptr, w_stride, column, matrix, HQ: tl.constexpr, HKV: tl.constexpr, D: tl.constexpr, BD: tl.constexpr,
    B: tl.constexpr, WINDOWED: tl.constexpr, CAPPED: tl.constexpr, RMAX: tl.constexpr, LEAST: tl.constexpr,
    RCLASS: tl.constexpr, DROP: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(1)
    start, sequence = sequence_of_block(blocks_ptr, tl.program_id(0))
    if sequence.stop == 0:
        return
    if RMAX > 0:
        whole = share_of_span(spans_ptr, sequence.span)
        if (whole.rank < LEAST) | (whole.rank > RCLASS):
            return  # another class's launch has it
        if whole.rank > 0:
            share = WorkShare(start, sequence.stop, whole.row0, whole.rank, whole.accumulate, whole.drop_threshold)
            join = _Join(dout_ptr, head * D, ds_ptr, w_ptr + column, w_stride, keys_ptr, matrix)
            by_rank(_join, join, share, _JoinSizes(HeadSizes(HQ, HKV, D, BD, B, WINDOWED, CAPPED), RMAX, DROP), RCLASS, False)
        tl.debug_barrier()  # other threads of this program read dout than wrote it
    keys = Keys(qkv_ptr, (HQ + 2 * HKV) * D, (HQ + head // (HQ // HKV)) * D, scale, window, cap)
    queries = _Queries(dout_ptr, lse_ptr, delta_ptr, head, T)
    _backward_of_queries(queries, keys, out_ptr, dqkv_ptr, start, sequence, HeadSizes(HQ, HKV, D, BD, B, WINDOWED, CAPPED))


@triton.jit
def _dkv_of(k, v, dk, dv, queries, keys, at, start, stop, sizes, MASKED: tl.constexpr):
    head = queries.head
    q = load_rows(keys.ptr, at, stop, keys.width, head * sizes.D, sizes)
    dout = load_rows(queries.dout_ptr, at, stop, sizes.HQ * sizes.D, head * sizes.D, sizes)
    rows = at + tl.arange(0, sizes.B)
    lse = tl.load(queries.lse_ptr + head.to(tl.int64) * queries.T + rows, mask=rows < stop, other=0.0)
    delta = tl.load(queries.delta_ptr + head.to(tl.int64) * queries.T + rows, mask=rows < stop, other=0.0)
    # Transposed: keys by queries. Queries past the end are zero and add zero.
    s = scores(mma(k, tl.trans(q), tl.zeros((sizes.B, sizes.B), tl.float32)), keys, sizes)
    p = tl.exp2(s - lse[None, :])
    if MASKED:
        p = tl.where(tl.trans(visible(at, start, stop, keys.window, sizes)), p, 0.0)
    dv = mma(p.to(v.dtype), dout, dv)
    ds = p * (mma(v, tl.trans(dout), tl.zeros((sizes.B, sizes.B), tl.float32)) - delta[None, :])
    if sizes.CAPPED:
        ds *= _cap_slope(s, keys)
    return mma(ds.to(k.dtype), q, dk), dv


@triton.jit
def _backward_of_keys(first, keys, dqkv_ptr, start, sequence, sizes):
    """dk and dv of one block of keys, from all query heads that share them, the one of `first` before the others."""
    B: tl.constexpr = sizes.B
    stop, v_column = sequence.stop, keys.column + sizes.HKV * sizes.D
    k = load_rows(keys.ptr, start, stop, keys.width, keys.column, sizes)
    v = load_rows(keys.ptr, start, stop, keys.width, v_column, sizes)
    dk = tl.zeros((B, sizes.BD), tl.float32)
    dv = tl.zeros((B, sizes.BD), tl.float32)
    last = tl.minimum(stop, start + B - 1 + keys.window)
    for member in range(0, sizes.HQ // sizes.HKV):
        queries = _Queries(first.dout_ptr, first.lse_ptr, first.delta_ptr, first.head + member, first.T)
        dk, dv = _dkv_of(k, v, dk, dv, queries, keys, start, start, stop, sizes, True)
        for at in range(start + B, last, B):
            dk, dv = _dkv_of(k, v, dk, dv, queries, keys, at, start, stop, sizes, sizes.WINDOWED)
    store_rows(dqkv_ptr, start, stop, keys.width, keys.column, dk * keys.scale, sizes)
    store_rows(dqkv_ptr, start, stop, keys.width, v_column, dv, sizes)


@Kernel
@triton.jit
def _dkv(
    qkv_ptr, dout_ptr, lse_ptr, delta_ptr, dqkv_ptr, blocks_ptr, T, scale, window, cap, HQ: tl.constexpr, HKV: tl.constexpr,
    D: tl.constexpr, BD: tl.constexpr, B: tl.constexpr, WINDOWED: tl.constexpr, CAPPED: tl.constexpr,
):  # fmt: skip
    start, sequence = sequence_of_block(blocks_ptr, tl.program_id(0))
    if sequence.stop == 0:
        return
    group = tl.program_id(1)
    keys = Keys(qkv_ptr, (HQ + 2 * HKV) * D, (HQ + group) * D, scale, window, cap)
    first = _Queries(dout_ptr, lse_ptr, delta_ptr, group * (HQ // HKV), T)
    _backward_of_keys(first, keys, dqkv_ptr, start, sequence, HeadSizes(HQ, HKV, D, BD, B, WINDOWED, CAPPED))


def attention_backward(
    dout: torch.Tensor,
    qkv: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    table: SequenceTable,
    heads: tuple[int, int],
    scale: float,
    window: int | None = None,
    incoming: AdapterInputGradient | None = None,
    cap: float | None = None,
) -> torch.Tensor:
    """dqkv [T, (Hq + 2 Hkv) D] of dout [T, Hq D]; the adapters' part is added to dout in place. Rows outside every sequence
    stay unwritten."""
    hq, hkv = heads
    size = qkv.shape[1] // (hq + 2 * hkv)
    dqkv = torch.empty_like(qkv)
    delta = torch.empty_like(lse)
    numbers = {
        "HQ": hq, "HKV": hkv, "D": size, "BD": max(16, triton.next_power_of_2(size)), "B": BLOCK,
        "WINDOWED": window is not None, "CAPPED": cap is not None,
    }  # fmt: skip
    formed = scale, NO_WINDOW if window is None else window, 1.0 if cap is None else cap
    cfg = config("attention_backward" if size <= LARGE_HEAD else "attention_backward_large")
    ds, adapters, spans, keys, column, matrix, classes = dout, dout, table.blocks, None, 0, 0, [0]
    if incoming is not None:
        ds, adapters, column, matrix = incoming.ds, incoming.adapters, incoming.column, incoming.matrix
        spans, keys, classes = incoming.table.spans, incoming.table.keys, [part.rank_class for part in incoming.table.classes]
    for below, rank in pairwise([-1, *classes]):
        _dq[(table.blocks.shape[0], hq)](
            qkv, out, dout, lse, delta, dqkv, table.blocks, qkv.shape[0], *formed, ds, adapters,
            keys if keys is not None else spans, spans, adapters.stride(0), column, matrix,
            **numbers, RMAX=classes[-1], LEAST=below + 1, RCLASS=rank, DROP=keys is not None,
            num_warps=cfg.warps, num_stages=cfg.stages,
        )  # fmt: skip
    _dkv[(table.blocks.shape[0], hkv)](
        qkv, dout, lse, delta, dqkv, table.blocks, qkv.shape[0], *formed,
        **numbers, num_warps=cfg.warps, num_stages=cfg.stages,
    )  # fmt: skip
    return dqkv
