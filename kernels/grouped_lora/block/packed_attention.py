"""Causal attention over packed sequences of one flat token axis, forward and backward, tuned for many short sequences.

Works on qkv[T, (Hq + 2 Hkv) D] as the rotary kernel writes it. Grouped query heads read their K and V in place; backward writes
one dqkv of the same layout and sums a K head's query heads in registers. Backward also adds the gradient from the adapters of
the product behind attention, at its first read of the incoming gradient. Every sum runs over a sequence's own blocks in order,
so the bits do not depend on neighbours and two runs agree. (FlashAttention-2, Dao 2023, algorithms 1 and 2, in blocks of 64 by
64.) Legend: M query rows, N key rows of a tile; D head size; lse, delta [Hq, T] fp32.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from grouped_lora.block.sequence_table import BLOCK, SequenceTable
from grouped_lora.cached_launch import Kernel
from grouped_lora.dropout_mask import kept, load_keys
from grouped_lora.launch_configs import config
from grouped_lora.tiles import load_ranks, load_shrunk, mma, span_at
from grouped_lora.work_table import WorkTable


@dataclass(frozen=True)
class Incoming:
    """What adapters add to the incoming gradient: ds [T, 1, RMAX] @ their A, in one layer's `adapters` from `column` on.

    matrix: the number of the product behind attention, to whose input dropout applies.
    """

    ds: torch.Tensor
    adapters: torch.Tensor
    column: int
    table: WorkTable
    matrix: int


@triton.jit
def _block_at(blocks_ptr, block):
    entry = blocks_ptr + block * 4
    return tl.load(entry), tl.load(entry + 1), tl.load(entry + 2), tl.load(entry + 3)


@triton.jit
def _load(ptr, start, stop, stride, column, BT: tl.constexpr, D: tl.constexpr, BD: tl.constexpr):
    rows = tl.arange(0, BT)
    columns = tl.arange(0, BD)
    base = ptr + tl.cast(start, tl.int64) * stride + column
    mask = (rows < stop - start)[:, None] & (columns < D)[None, :]
    return tl.load(base + rows[:, None] * stride + columns[None, :], mask=mask, other=0.0)


@triton.jit
def _store(ptr, start, stop, stride, column, tile, BT: tl.constexpr, D: tl.constexpr, BD: tl.constexpr):
    rows = tl.arange(0, BT)
    columns = tl.arange(0, BD)
    base = ptr + tl.cast(start, tl.int64) * stride + column
    mask = (rows < stop - start)[:, None] & (columns < D)[None, :]
    tl.store(base + rows[:, None] * stride + columns[None, :], tile, mask=mask)


@triton.jit
def _seen(q_start, k_start, stop, window, BM: tl.constexpr, BN: tl.constexpr):
    """[M, N] mask: the key lies within the sequence, not after the query, and within the query's window."""
    q = q_start + tl.arange(0, BM)[:, None]
    k = k_start + tl.arange(0, BN)[None, :]
    return (k <= q) & (k < stop) & (q - k < window)


@triton.jit
def _probabilities(q, k, lse, q_start, k_start, stop, window, scale, MASKED: tl.constexpr, B: tl.constexpr):
    """[M, N] probabilities of one pair of blocks, from forward's log-sum-exp. Only blocks on the diagonal or at a window's edge
    need the mask: a block before the diagonal is full and precedes every query."""
    p = tl.exp2(mma(q, tl.trans(k), tl.zeros((B, B), tl.float32)) * (scale * 1.4426950408889634) - lse[:, None])
    if MASKED:
        p = tl.where(_seen(q_start, k_start, stop, window, B, B), p, 0.0)
    return p


@triton.jit
def _attend(q, qkv_ptr, width, k_column, start, at, stop, window, scale, peak, total, acc, HKV: tl.constexpr,
            D: tl.constexpr, BD: tl.constexpr, B: tl.constexpr, MASKED: tl.constexpr):  # fmt: skip
    """Update the running maximum, sum and output with one block of keys."""
    k = _load(qkv_ptr, at, stop, width, k_column, B, D, BD)
    s = mma(q, tl.trans(k), tl.zeros((B, B), tl.float32)) * (scale * 1.4426950408889634)
    if MASKED:
        s = tl.where(_seen(start, at, stop, window, B, B), s, float("-inf"))
    higher = tl.maximum(peak, tl.max(s, 1))
    safe = tl.where(higher == float("-inf"), 0.0, higher)
    p = tl.exp2(s - safe[:, None])
    fade = tl.exp2(peak - safe)
    v = _load(qkv_ptr, at, stop, width, k_column + HKV * D, B, D, BD)
    return higher, total * fade + tl.sum(p, 1), mma(p.to(v.dtype), v, acc * fade[:, None])


@Kernel
@triton.jit
def _attention(
    qkv_ptr, out_ptr, lse_ptr, blocks_ptr, T, scale, window, HQ: tl.constexpr, HKV: tl.constexpr, D: tl.constexpr,
    BD: tl.constexpr, B: tl.constexpr, WINDOWED: tl.constexpr,
):  # fmt: skip
    block = tl.program_id(0)
    head = tl.program_id(1)
    start, first, stop, _ = _block_at(blocks_ptr, block)
    if stop == 0:
        return
    width = (HQ + 2 * HKV) * D
    k_column = (HQ + head // (HQ // HKV)) * D
    q = _load(qkv_ptr, start, stop, width, head * D, B, D, BD)
    peak = tl.full((B,), float("-inf"), tl.float32)
    total = tl.zeros((B,), tl.float32)
    acc = tl.zeros((B, BD), tl.float32)
    low = tl.maximum(first, start - window + 1)
    low = first + (low - first) // B * B
    for at in range(low, start, B):
        peak, total, acc = _attend(
            q, qkv_ptr, width, k_column, start, at, stop, window, scale, peak, total, acc, HKV, D, BD, B, WINDOWED
        )
    peak, total, acc = _attend(
        q, qkv_ptr, width, k_column, start, start, stop, window, scale, peak, total, acc, HKV, D, BD, B, True
    )
    rows = start + tl.arange(0, B)
    _store(out_ptr, start, stop, HQ * D, head * D, acc / total[:, None], B, D, BD)
    tl.store(lse_ptr + head.to(tl.int64) * T + rows, peak + tl.log2(total), mask=rows < stop)


@triton.jit
def _dq_of(q, dout, lse, delta, acc, qkv_ptr, width, k_column, start, at, stop, window, scale, HKV: tl.constexpr,
           D: tl.constexpr, BD: tl.constexpr, B: tl.constexpr, MASKED: tl.constexpr):  # fmt: skip
    k = _load(qkv_ptr, at, stop, width, k_column, B, D, BD)
    v = _load(qkv_ptr, at, stop, width, k_column + HKV * D, B, D, BD)
    p = _probabilities(q, k, lse, start, at, stop, window, scale, MASKED, B)
    ds = p * (mma(dout, tl.trans(v), tl.zeros((B, B), tl.float32)) - delta[:, None])
    return mma(ds.to(k.dtype), k, acc)


@triton.jit
def _joined(dout, ds_ptr, w_ptr, keys_ptr, w_stride, column, local, matrix, start, stop, row0, rank, limit, D: tl.constexpr,
            BD: tl.constexpr, B: tl.constexpr, RMAX: tl.constexpr, DROP: tl.constexpr, R: tl.constexpr):  # fmt: skip
    """dout [B, BD] of one head, whose columns start at `local`, with the adapter's part added."""
    columns = tl.arange(0, BD)
    ds = load_shrunk(ds_ptr, RMAX, 0, start, stop, rank, B, R)
    y = mma(ds, load_ranks(w_ptr, w_stride, column + local, row0, rank, columns, D, R), tl.zeros((B, BD), tl.float32))
    if DROP:
        y = tl.where(kept(load_keys(keys_ptr, start, stop, B), matrix, columns + local, limit), y, 0.0)
    return (y + dout.to(tl.float32)).to(dout.dtype)


@Kernel
@triton.jit
def _dq(
    qkv_ptr, out_ptr, dout_ptr, lse_ptr, delta_ptr, dqkv_ptr, blocks_ptr, T, scale, window, ds_ptr, w_ptr, keys_ptr, spans_ptr,
    w_stride, column, matrix, HQ: tl.constexpr, HKV: tl.constexpr, D: tl.constexpr, BD: tl.constexpr, B: tl.constexpr,
    WINDOWED: tl.constexpr, RMAX: tl.constexpr, DROP: tl.constexpr,
):  # fmt: skip
    block = tl.program_id(0)
    head = tl.program_id(1)
    start, first, stop, span = _block_at(blocks_ptr, block)
    if stop == 0:
        return
    width = (HQ + 2 * HKV) * D
    k_column = (HQ + head // (HQ // HKV)) * D
    q = _load(qkv_ptr, start, stop, width, head * D, B, D, BD)
    dout = _load(dout_ptr, start, stop, HQ * D, head * D, B, D, BD)
    if RMAX > 0:
        _, _, row0, rank, _, limit = span_at(spans_ptr, span)
        if rank > 0:
            if rank <= 16:
                dout = _joined(dout, ds_ptr, w_ptr, keys_ptr, w_stride, column, head * D, matrix, start, stop, row0, rank,
                               limit, D, BD, B, RMAX, DROP, 16)  # fmt: skip
            elif (rank <= 32) | (RMAX <= 32):
                dout = _joined(dout, ds_ptr, w_ptr, keys_ptr, w_stride, column, head * D, matrix, start, stop, row0, rank,
                               limit, D, BD, B, RMAX, DROP, 32)  # fmt: skip
            else:
                dout = _joined(dout, ds_ptr, w_ptr, keys_ptr, w_stride, column, head * D, matrix, start, stop, row0, rank,
                               limit, D, BD, B, RMAX, DROP, RMAX)  # fmt: skip
            _store(dout_ptr, start, stop, HQ * D, head * D, dout, B, D, BD)
    out = _load(out_ptr, start, stop, HQ * D, head * D, B, D, BD)
    delta = tl.sum(dout.to(tl.float32) * out.to(tl.float32), 1)
    rows = start + tl.arange(0, B)
    lse = tl.load(lse_ptr + head.to(tl.int64) * T + rows, mask=rows < stop, other=0.0)
    tl.store(delta_ptr + head.to(tl.int64) * T + rows, delta, mask=rows < stop)
    acc = tl.zeros((B, BD), tl.float32)
    low = tl.maximum(first, start - window + 1)
    low = first + (low - first) // B * B
    for at in range(low, start, B):
        acc = _dq_of(
            q, dout, lse, delta, acc, qkv_ptr, width, k_column, start, at, stop, window, scale, HKV, D, BD, B, WINDOWED
        )
    acc = _dq_of(q, dout, lse, delta, acc, qkv_ptr, width, k_column, start, start, stop, window, scale, HKV, D, BD, B, True)
    _store(dqkv_ptr, start, stop, width, head * D, acc * scale, B, D, BD)


@triton.jit
def _dkv_of(k, v, dk, dv, qkv_ptr, dout_ptr, lse_ptr, delta_ptr, width, head, T, at, start, stop, window, scale,
            HQ: tl.constexpr, D: tl.constexpr, BD: tl.constexpr, B: tl.constexpr, MASKED: tl.constexpr):  # fmt: skip
    q = _load(qkv_ptr, at, stop, width, head * D, B, D, BD)
    dout = _load(dout_ptr, at, stop, HQ * D, head * D, B, D, BD)
    rows = at + tl.arange(0, B)
    lse = tl.load(lse_ptr + head.to(tl.int64) * T + rows, mask=rows < stop, other=0.0)
    delta = tl.load(delta_ptr + head.to(tl.int64) * T + rows, mask=rows < stop, other=0.0)
    # Transposed: keys by queries. Queries past the end are zero and add zero.
    p = tl.exp2(mma(k, tl.trans(q), tl.zeros((B, B), tl.float32)) * (scale * 1.4426950408889634) - lse[None, :])
    if MASKED:
        p = tl.where(tl.trans(_seen(at, start, stop, window, B, B)), p, 0.0)
    dv = mma(p.to(v.dtype), dout, dv)
    ds = p * (mma(v, tl.trans(dout), tl.zeros((B, B), tl.float32)) - delta[None, :])
    return mma(ds.to(k.dtype), q, dk), dv


@Kernel
@triton.jit
def _dkv(
    qkv_ptr, dout_ptr, lse_ptr, delta_ptr, dqkv_ptr, blocks_ptr, T, scale, window, HQ: tl.constexpr, HKV: tl.constexpr,
    D: tl.constexpr, BD: tl.constexpr, B: tl.constexpr, WINDOWED: tl.constexpr,
):  # fmt: skip
    block = tl.program_id(0)
    group = tl.program_id(1)
    start, _, stop, _ = _block_at(blocks_ptr, block)
    if stop == 0:
        return
    width = (HQ + 2 * HKV) * D
    k_column = (HQ + group) * D
    k = _load(qkv_ptr, start, stop, width, k_column, B, D, BD)
    v = _load(qkv_ptr, start, stop, width, k_column + HKV * D, B, D, BD)
    dk = tl.zeros((B, BD), tl.float32)
    dv = tl.zeros((B, BD), tl.float32)
    last = tl.minimum(stop, start + B - 1 + window)
    for member in range(0, HQ // HKV):
        head = group * (HQ // HKV) + member
        dk, dv = _dkv_of(
            k, v, dk, dv, qkv_ptr, dout_ptr, lse_ptr, delta_ptr, width, head, T, start, start, stop, window, scale,
            HQ, D, BD, B, True,
        )  # fmt: skip
        for at in range(start + B, last, B):
            dk, dv = _dkv_of(
                k, v, dk, dv, qkv_ptr, dout_ptr, lse_ptr, delta_ptr, width, head, T, at, start, stop, window, scale,
                HQ, D, BD, B, WINDOWED,
            )  # fmt: skip
    _store(dqkv_ptr, start, stop, width, k_column, dk * scale, B, D, BD)
    _store(dqkv_ptr, start, stop, width, k_column + HKV * D, dv, B, D, BD)


_NO_WINDOW = 1 << 30


def attention(
    qkv: torch.Tensor, table: SequenceTable, heads: tuple[int, int], scale: float, window: int | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """(out [T, Hq D], lse [Hq, T] fp32 in base 2) of qkv [T, (Hq + 2 Hkv) D], contiguous. Rows outside every sequence stay
    unwritten.

    With a window, a token attends to itself and to the window - 1 tokens before it.
    """
    hq, hkv = heads
    size = qkv.shape[1] // (hq + 2 * hkv)
    out = torch.empty((qkv.shape[0], hq * size), dtype=qkv.dtype, device=qkv.device)
    lse = torch.empty((hq, qkv.shape[0]), dtype=torch.float32, device=qkv.device)
    cfg = config("attention")
    _attention[(table.blocks.shape[0], hq)](
        qkv, out, lse, table.blocks, qkv.shape[0], scale, _NO_WINDOW if window is None else window,
        HQ=hq, HKV=hkv, D=size, BD=max(16, triton.next_power_of_2(size)), B=BLOCK, WINDOWED=window is not None,
        num_warps=cfg.warps, num_stages=cfg.stages,
    )  # fmt: skip
    return out, lse


def attention_backward(
    dout: torch.Tensor,
    qkv: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    table: SequenceTable,
    heads: tuple[int, int],
    scale: float,
    window: int | None = None,
    incoming: Incoming | None = None,
) -> torch.Tensor:
    """dqkv [T, (Hq + 2 Hkv) D] of dout [T, Hq D]; the adapters' part is added to dout in place. Rows outside every sequence
    stay unwritten."""
    hq, hkv = heads
    size = qkv.shape[1] // (hq + 2 * hkv)
    dqkv = torch.empty_like(qkv)
    delta = torch.empty_like(lse)
    numbers = {
        "HQ": hq, "HKV": hkv, "D": size, "BD": max(16, triton.next_power_of_2(size)), "B": BLOCK, "WINDOWED": window is not None
    }  # fmt: skip
    reach = _NO_WINDOW if window is None else window
    cfg = config("attention_backward")
    ds, adapters, spans, keys, column, matrix, rank = dout, dout, table.blocks, None, 0, 0, 0
    if incoming is not None:
        ds, adapters, column, matrix = incoming.ds, incoming.adapters, incoming.column, incoming.matrix
        spans, keys, rank = incoming.table.spans, incoming.table.keys, incoming.table.max_rank
    _dq[(table.blocks.shape[0], hq)](
        qkv, out, dout, lse, delta, dqkv, table.blocks, qkv.shape[0], scale, reach, ds, adapters,
        keys if keys is not None else spans, spans, adapters.stride(0), column, matrix,
        **numbers, RMAX=rank, DROP=keys is not None, num_warps=cfg.warps, num_stages=cfg.stages,
    )  # fmt: skip
    _dkv[(table.blocks.shape[0], hkv)](
        qkv, dout, lse, delta, dqkv, table.blocks, qkv.shape[0], scale, reach,
        **numbers, num_warps=cfg.warps, num_stages=cfg.stages,
    )  # fmt: skip
    return dqkv
