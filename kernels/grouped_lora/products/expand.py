"""Expand: Y = S W for every adapter in one launch; rows of tokens without an adapter become 0.

Used by the torch operators alone (torch_ops.py): the executor's passes add S W inside the kernels that write that output
anyway.
"""

import torch
import triton
import triton.language as tl

from grouped_lora.cached_launch import Kernel
from grouped_lora.launch_configs import config
from grouped_lora.tiles import block_at, load_ranks, load_shrunk, mma, store_tokens
from grouped_lora.work_table import BLOCK_T, WorkTable


@triton.jit
def _tile(s_ptr, w_ptr, s_stride, w_stride, w_column, start, end, row0, rank, columns, limit,
          BT: tl.constexpr, BN: tl.constexpr, R: tl.constexpr):  # fmt: skip
    s = load_shrunk(s_ptr, s_stride, 0, start, end, rank, BT, R)
    return mma(s, load_ranks(w_ptr, w_stride, w_column, row0, rank, columns, limit, R), tl.zeros((BT, BN), tl.float32))


@Kernel
@triton.jit
def _expand(s_ptr, w_ptr, y_ptr, spans_ptr, blocks_ptr, s_stride, w_stride, y_stride, w_column, width,
            BT: tl.constexpr, BN: tl.constexpr, RMAX: tl.constexpr):  # fmt: skip
    block = tl.program_id(0)
    _, start, end, row0, rank, _ = block_at(blocks_ptr, spans_ptr, block)
    if start >= end:
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
    store_tokens(y_ptr, start, end, y_stride, columns, width, y, BT)


def expand(s: torch.Tensor, adapters: torch.Tensor, column: int, width: int, table: WorkTable) -> torch.Tensor:
    """y [T, width] = s[:, 0] @ adapters[rows of each adapter, column : + width]; s is [T, 1, RMAX]."""
    y = torch.empty((s.shape[0], width), dtype=s.dtype, device=s.device)
    cfg = config("expand", table.max_rank)
    _expand[(table.blocks.shape[0], -(-width // cfg.block_n))](
        s, adapters, y, table.spans, table.blocks, s.stride(0), adapters.stride(0), y.stride(0), column, width,
        BT=BLOCK_T, BN=cfg.block_n, RMAX=table.max_rank, num_warps=cfg.warps, num_stages=cfg.stages,
    )  # fmt: skip
    return y
