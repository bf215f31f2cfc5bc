"""Y = S W for every adapter in one launch, or Y += S W in place.

Used only where no kernel of ours touches the output (attention's incoming gradient). Without a Y to add to, rows of tokens
without an adapter become 0.
"""

import torch
import triton
import triton.language as tl

from grouped_lora.keep import kept, load_keys
from grouped_lora.launch import config
from grouped_lora.tiles import block_at, load_ranks, load_shrunk, load_tokens, mma, store_tokens
from grouped_lora.work import BLOCK_T, WorkTable


@triton.jit
def _tile(s_ptr, w_ptr, s_stride, w_stride, w_column, start, end, row0, rank, columns, limit,
          BT: tl.constexpr, BN: tl.constexpr, R: tl.constexpr):  # fmt: skip
    s = load_shrunk(s_ptr, s_stride, 0, start, end, rank, BT, R)
    return mma(s, load_ranks(w_ptr, w_stride, w_column, row0, rank, columns, limit, R), tl.zeros((BT, BN), tl.float32))


@triton.jit
def _expand(s_ptr, w_ptr, y_ptr, keys_ptr, spans_ptr, blocks_ptr, s_stride, w_stride, y_stride, w_column, width, matrix,
            BT: tl.constexpr, BN: tl.constexpr, ADD: tl.constexpr, DROP: tl.constexpr, RMAX: tl.constexpr):  # fmt: skip
    block = tl.program_id(0)
    _, start, end, row0, rank, limit = block_at(blocks_ptr, spans_ptr, block)
    if start >= end:
        return
    if ADD:  # noqa: SIM102 (decided at compile time)
        if rank == 0:
            return
    columns = tl.program_id(1) * BN + tl.arange(0, BN)
    y = tl.zeros((BT, BN), tl.float32)
    if rank > 0:
        if rank <= 16:
            y = _tile(s_ptr, w_ptr, s_stride, w_stride, w_column, start, end, row0, rank, columns, width, BT, BN, 16)
        elif (rank <= 32) | (RMAX <= 32):
            y = _tile(s_ptr, w_ptr, s_stride, w_stride, w_column, start, end, row0, rank, columns, width, BT, BN, 32)
        else:
            y = _tile(s_ptr, w_ptr, s_stride, w_stride, w_column, start, end, row0, rank, columns, width, BT, BN, RMAX)
    if DROP:
        y = tl.where(kept(load_keys(keys_ptr, start, end, BT), matrix, columns, limit), y, 0.0)
    if ADD:
        y += load_tokens(y_ptr, start, end, y_stride, columns, width, BT).to(tl.float32)
    store_tokens(y_ptr, start, end, y_stride, columns, width, y, BT)


def expand(
    s: torch.Tensor,
    adapters: torch.Tensor,
    column: int,
    width: int,
    table: WorkTable,
    matrix: int | None = None,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """y [T, width] = s[:, 0] @ adapters[rows of each adapter, column : + width]; s is [T, 1, RMAX].

    matrix: its number, where y is the gradient of an adapter's input, so that dropout applies to it. out: added to in place.
    """
    drop = table.keys is not None and matrix is not None
    y = torch.empty((s.shape[0], width), dtype=s.dtype, device=s.device) if out is None else out
    cfg = config("expand", table.max_rank)
    _expand[(table.blocks.shape[0], -(-width // cfg.block_n))](
        s, adapters, y, table.keys if drop else s, table.spans, table.blocks, s.stride(0), adapters.stride(0),
        y.stride(0), column, width, matrix or 0, BT=BLOCK_T, BN=cfg.block_n, ADD=out is not None, DROP=drop,
        RMAX=table.max_rank, num_warps=cfg.warps, num_stages=cfg.stages,
    )  # fmt: skip
    return y
