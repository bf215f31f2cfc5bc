"""The output of attention or of the MLP where it is normed before the residual sum (Gemma 2 and 3): the adapters' part, and the
norm's factor.

Forward alone: residual_norm.py multiplies by the factor as it adds, and its backward is that of any norm. Legend: T tokens, D
features; S[T, 1, RMAX]; adapters[rows, W] one layer's compute copy.
"""

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from grouped_lora.cached_launch import Kernel
from grouped_lora.launch_configs import config
from grouped_lora.tiles import by_rank, load_ranks, load_shrunk, load_tokens, mma, share_of_block, store_tokens
from grouped_lora.work_table import BLOCK_T, WorkTable


class _Output(NamedTuple):
    """The product's output y, S and the adapter's B, and where 1 / rms goes."""

    y_ptr: Any
    s_ptr: Any
    b_ptr: Any
    b_stride: Any
    rstd_ptr: Any
    eps: Any


class _Sizes(NamedTuple):
    D: Any
    BT: Any
    BN: Any
    STAGES: Any
    RMAX: Any


@triton.jit
def _add_and_measure(p, share, sizes, R: tl.constexpr):
    start, end = share.start, share.end
    D: tl.constexpr = sizes.D
    BT: tl.constexpr = sizes.BT
    tokens = start + tl.arange(0, BT)
    squares = tl.zeros((BT,), tl.float32)
    if R > 0:
        s = load_shrunk(p.s_ptr, sizes.RMAX, 0, start, end, share.rank, BT, R)
    for c in tl.range(0, D, sizes.BN, num_stages=sizes.STAGES):
        columns = c + tl.arange(0, sizes.BN)
        y = load_tokens(p.y_ptr, start, end, D, columns, D, BT).to(tl.float32)
        if R > 0:
            y = mma(s, load_ranks(p.b_ptr, p.b_stride, 0, share.row0, share.rank, columns, D, R), y)
            y = y.to(p.y_ptr.dtype.element_ty).to(tl.float32)
            store_tokens(p.y_ptr, start, end, D, columns, D, y, BT)
        squares += tl.sum(y * y, 1)
    tl.store(p.rstd_ptr + tokens, 1.0 / tl.sqrt(squares / D + p.eps), mask=tokens < end)


@Kernel
@triton.jit
def _post_norm(
    y_ptr, s_ptr, b_ptr, rstd_ptr, spans_ptr, blocks_ptr, b_stride, b_column, eps,
    D: tl.constexpr, BT: tl.constexpr, BN: tl.constexpr, STAGES: tl.constexpr, RMAX: tl.constexpr, RCLASS: tl.constexpr,
):  # fmt: skip
    _, share = share_of_block(blocks_ptr, spans_ptr, tl.program_id(1), tl.program_id(0) * BT)
    if share.start >= share.end:
        return
    operands = _Output(y_ptr, s_ptr, b_ptr + b_column, b_stride, rstd_ptr, eps)
    by_rank(_add_and_measure, operands, share, _Sizes(D, BT, BN, STAGES, RMAX), RCLASS, True)


def post_norm(
    y: torch.Tensor, s: torch.Tensor | None, adapters: torch.Tensor, b_column: int, eps: float, table: WorkTable
) -> torch.Tensor:
    """Adds s @ Bᵀ to y [T, D] in place; returns its rows' 1 / rms, [T] fp32.

    s [T, 1, RMAX], or None without adapters. `b_column`: where B of this layer's matrix starts in `adapters`.
    """
    rstd = torch.empty(y.shape[0], dtype=torch.float32, device=y.device)
    for part in table.classes:
        rank = part.rank_class if s is not None else 0
        cfg = config("norm", rank)
        _post_norm[(BLOCK_T // cfg.block_t, part.blocks.shape[0])](
            y, s if s is not None else y, adapters, rstd, part.spans, part.blocks, adapters.stride(0), b_column, eps,
            D=y.shape[1], BT=cfg.block_t, BN=cfg.block_n, STAGES=cfg.stages, RMAX=table.max_rank if s is not None else 0,
            RCLASS=rank, num_warps=cfg.warps, num_stages=cfg.stages,
        )  # fmt: skip
    return rstd
