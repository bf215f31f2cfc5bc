"""Expand: Y = S W for every adapter, one launch a rank class; rows of tokens without an adapter become 0.

Used by the torch operators alone (torch_ops.py): the executor's passes add S W inside the kernels that write that output
anyway.
"""

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from grouped_lora.cached_launch import Kernel
from grouped_lora.launch_configs import config
from grouped_lora.tiles import by_rank, load_ranks, load_shrunk, mma, share_of_block, store_tokens
from grouped_lora.work_table import BLOCK_T, WorkTable


class _Tile(NamedTuple):
    """S, an adapter's rows from the matrix's first column on, and y's columns of this program."""

    s_ptr: Any
    s_stride: Any
    w_ptr: Any
    w_stride: Any
    y_ptr: Any
    y_stride: Any
    columns: Any
    width: Any


class _Sizes(NamedTuple):
    BT: Any
    BN: Any


@triton.jit
def _tile(p, share, sizes, R: tl.constexpr):
    y = tl.zeros((sizes.BT, sizes.BN), tl.float32)
    if R > 0:
        s = load_shrunk(p.s_ptr, p.s_stride, 0, share.start, share.end, share.rank, sizes.BT, R)
        y = mma(s, load_ranks(p.w_ptr, p.w_stride, 0, share.row0, share.rank, p.columns, p.width, R), y)
    store_tokens(p.y_ptr, share.start, share.end, p.y_stride, p.columns, p.width, y, sizes.BT)


@Kernel
@triton.jit
def _expand(s_ptr, w_ptr, y_ptr, spans_ptr, blocks_ptr, s_stride, w_stride, y_stride, w_column, width,
            BT: tl.constexpr, BN: tl.constexpr, RCLASS: tl.constexpr):  # fmt: skip
    _, share = share_of_block(blocks_ptr, spans_ptr, tl.program_id(0))
    if share.start >= share.end:
        return
    columns = tl.program_id(1) * BN + tl.arange(0, BN)
    operands = _Tile(s_ptr, s_stride, w_ptr + w_column, w_stride, y_ptr, y_stride, columns, width)
    by_rank(_tile, operands, share, _Sizes(BT, BN), RCLASS, True)


def expand(s: torch.Tensor, adapters: torch.Tensor, column: int, width: int, table: WorkTable) -> torch.Tensor:
    """y [T, width] = s[:, 0] @ adapters[rows of each adapter, column : + width]; s is [T, 1, RMAX]."""
    y = torch.empty((s.shape[0], width), dtype=s.dtype, device=s.device)
    for part in table.classes:
        cfg = config("expand", part.rank_class)
        _expand[(part.blocks.shape[0], -(-width // cfg.block_n))](
            s, adapters, y, part.spans, part.blocks, s.stride(0), adapters.stride(0), y.stride(0), column, width,
            BT=BLOCK_T, BN=cfg.block_n, RCLASS=part.rank_class, num_warps=cfg.warps, num_stages=cfg.stages,
        )  # fmt: skip
    return y
