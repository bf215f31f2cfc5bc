"""SwiGLU, or GeGLU, fused with the adapters of gate, up and down, forward and backward: each direction reads gate and up once.

Forward: act = silu(gate + S_g B_g) * (up + S_u B_u), and down's S = scale · act Aᵀ, summed while act is in registers. Backward:
the gradients of gate and up in place, with down's dS A added to dact; dB of gate and up and dA of down, summed while their
factors are in registers; act is recomputed, not stored. Legend: T tokens, F features; gate_up[T, 2F]; S[T, 2, RMAX]; adapters
and grad: one layer's compute copy and fp32 gradient [rows, C].
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from grouped_lora.block.nonlinearities import GATES, gated, gated_gradients
from grouped_lora.cached_launch import Kernel
from grouped_lora.dropout_mask import keep_mask, load_keys
from grouped_lora.gradient import Gradient
from grouped_lora.launch_configs import config
from grouped_lora.products.shrink import sum_partials
from grouped_lora.tiles import (
    by_rank,
    load_ranks,
    load_shrunk,
    load_tokens,
    mma,
    share_of_block,
    share_of_span,
    store_ranks,
    store_shrunk,
    store_squares,
    store_tokens,
)
from grouped_lora.work_table import BLOCK_T, WorkTable

# Features per program. A constant, so that S is summed over the same chunks in every step.
CHUNK = 512


@dataclass(frozen=True)
class SwigluColumns:
    """Where B of gate and up and A of down start in a layer's part of an arena row. down_matrix: down's number, for dropout.
    activation: of the gate, one of GATES."""

    b_gate: int
    b_up: int
    a_down: int
    down_matrix: int = 0
    activation: str = "silu"


class _Swiglu(NamedTuple):
    """gate and up side by side, their S and B, down's A, act, and this program's partial sum of down's S; its features
    (f_start .. f_stop). matrix: down's, for dropout."""

    gu_ptr: Any
    s_ptr: Any
    gate_ptr: Any
    up_ptr: Any
    down_ptr: Any
    w_stride: Any
    act_ptr: Any
    partial_ptr: Any
    keys_ptr: Any
    matrix: Any
    f_start: Any
    f_stop: Any
    F: Any
    scale: Any


class _Sizes(NamedTuple):
    BT: Any
    BN: Any
    STAGES: Any
    RMAX: Any
    DROP: Any
    GELU: Any
    SQUARES: Any


@triton.jit
def _forward(p, share, sizes, R: tl.constexpr):
    BT: tl.constexpr = sizes.BT
    start, end, row0, rank, F = share.start, share.end, share.row0, share.rank, p.F
    if R > 0:
        s_gate = load_shrunk(p.s_ptr, 2 * sizes.RMAX, 0, start, end, rank, BT, R)
        s_up = load_shrunk(p.s_ptr, 2 * sizes.RMAX, sizes.RMAX, start, end, rank, BT, R)
        acc = tl.zeros((BT, R), tl.float32)
        if sizes.DROP:
            keys = load_keys(p.keys_ptr, start, end, BT)
    # Stages given here: otherwise Triton pipelines no productless loads.
    for c in tl.range(p.f_start, p.f_stop, sizes.BN, num_stages=sizes.STAGES):
        columns = c + tl.arange(0, sizes.BN)
        gate = load_tokens(p.gu_ptr, start, end, 2 * F, columns, F, BT).to(tl.float32)
        up = load_tokens(p.gu_ptr + F, start, end, 2 * F, columns, F, BT).to(tl.float32)
        if R > 0:
            gate = mma(s_gate, load_ranks(p.gate_ptr, p.w_stride, 0, row0, rank, columns, F, R), gate)
            up = mma(s_up, load_ranks(p.up_ptr, p.w_stride, 0, row0, rank, columns, F, R), up)
        act = gated(gate, up, sizes.GELU).to(p.act_ptr.dtype.element_ty)
        store_tokens(p.act_ptr, start, end, F, columns, F, act, BT)
        if R > 0:
            if sizes.DROP:
                act = tl.where(keep_mask(keys, p.matrix, columns, share.drop_threshold), act, 0.0)
            acc = mma(act, tl.trans(load_ranks(p.down_ptr, p.w_stride, 0, row0, rank, columns, F, R)), acc)
    if R > 0:
        store_shrunk(p.partial_ptr, start, end, sizes.RMAX, rank, acc * p.scale, BT, R)


@Kernel
@triton.jit(do_not_specialize=["matrix"])
def _swiglu(
    gu_ptr, s_ptr, w_ptr, act_ptr, partials_ptr, keys_ptr, spans_ptr, scales_ptr, blocks_ptr, w_stride, gate_column, up_column,
    down_column, matrix, F, T, CHUNK: tl.constexpr, BT: tl.constexpr, BN: tl.constexpr, STAGES: tl.constexpr,
    RMAX: tl.constexpr, RCLASS: tl.constexpr, DROP: tl.constexpr, GELU: tl.constexpr,
):  # fmt: skip
    chunk = tl.program_id(0)
    span, share = share_of_block(blocks_ptr, spans_ptr, tl.program_id(1))
    scale = tl.load(scales_ptr + span)
    if share.start >= share.end:
        return
    f_start = chunk * CHUNK
    operands = _Swiglu(
        gu_ptr, s_ptr, w_ptr + gate_column, w_ptr + up_column, w_ptr + down_column, w_stride, act_ptr,
        partials_ptr + chunk.to(tl.int64) * T * RMAX, keys_ptr, matrix, f_start, tl.minimum(F, f_start + CHUNK), F, scale,
    )  # fmt: skip
    by_rank(_forward, operands, share, _Sizes(BT, BN, STAGES, RMAX, DROP, GELU, False), RCLASS, True)


class _SwigluBack(NamedTuple):
    """gate and up side by side, which their gradients replace, act's gradient, S of gate and up, down's dS, the adapters'
    columns and those of their gradients; this program's columns of F, from `first` on."""

    gu_ptr: Any
    dact_ptr: Any
    s_ptr: Any
    ds_ptr: Any
    w_ptr: Any
    w_stride: Any
    grad_ptr: Any
    grad_stride: Any
    squares_ptr: Any
    squares_stride: Any
    gate_column: Any
    up_column: Any
    down_column: Any
    keys_ptr: Any
    matrix: Any
    first: Any
    columns: Any
    F: Any


@triton.jit
def _backward_without_adapter(p, share, sizes):
    F, end, columns = p.F, share.end, p.columns
    for t in tl.range(share.start, end, sizes.BT, num_stages=sizes.STAGES):
        gate = load_tokens(p.gu_ptr, t, end, 2 * F, columns, F, sizes.BT).to(tl.float32)
        up = load_tokens(p.gu_ptr + F, t, end, 2 * F, columns, F, sizes.BT).to(tl.float32)
        dact = load_tokens(p.dact_ptr, t, end, F, columns, F, sizes.BT).to(tl.float32)
        _, dgate, dup = gated_gradients(gate, up, dact, sizes.GELU)
        store_tokens(p.gu_ptr, t, end, 2 * F, columns, F, dgate, sizes.BT)
        store_tokens(p.gu_ptr + F, t, end, 2 * F, columns, F, dup, sizes.BT)


@triton.jit
def _load_transposed(eye, ptr, start, stop, stride, columns, limit, BT: tl.constexpr, BN: tl.constexpr):
    """The tile [N, T] of activations in fp32, transposed by a product with the identity, which changes no finite number: the
    matrix unit reads the tile in its copied layout, and its result has the layout of the next product's operand. (A NaN spreads
    over the tile's columns of its own token.)"""
    return mma(eye, tl.trans(load_tokens(ptr, start, stop, stride, columns, limit, BT)), tl.zeros((BN, BT), tl.float32))


@triton.jit
def _backward_adapted(p, share, sizes, R: tl.constexpr):
    # Tiles are [N, T], columns along the matrix unit's long side: so even a rank of 16 fills it, and the first products'
    # results in registers are the left operand of the second ones unchanged.
    BT: tl.constexpr = sizes.BT
    BN: tl.constexpr = sizes.BN
    F, end, row0, rank, columns = p.F, share.end, share.row0, share.rank, p.columns
    dtype: tl.constexpr = p.gu_ptr.dtype.element_ty
    b_gate = tl.trans(load_ranks(p.w_ptr, p.w_stride, p.gate_column, row0, rank, columns, F, R))
    b_up = tl.trans(load_ranks(p.w_ptr, p.w_stride, p.up_column, row0, rank, columns, F, R))
    a_down = tl.trans(load_ranks(p.w_ptr, p.w_stride, p.down_column, row0, rank, columns, F, R))
    db_gate = tl.zeros((BN, R), tl.float32)
    db_up = tl.zeros((BN, R), tl.float32)
    da_down = tl.zeros((BN, R), tl.float32)
    place = tl.arange(0, BN)
    eye = (place[:, None] == place[None, :]).to(dtype)
    for t in tl.range(share.start, end, BT, num_stages=sizes.STAGES):
        s_gate = load_shrunk(p.s_ptr, 2 * sizes.RMAX, 0, t, end, rank, BT, R)
        s_up = load_shrunk(p.s_ptr, 2 * sizes.RMAX, sizes.RMAX, t, end, rank, BT, R)
        ds = load_shrunk(p.ds_ptr, sizes.RMAX, 0, t, end, rank, BT, R)
        gate = mma(b_gate, tl.trans(s_gate), _load_transposed(eye, p.gu_ptr, t, end, 2 * F, columns, F, BT, BN))
        up = mma(b_up, tl.trans(s_up), _load_transposed(eye, p.gu_ptr + F, t, end, 2 * F, columns, F, BT, BN))
        dact = _load_transposed(eye, p.dact_ptr, t, end, F, columns, F, BT, BN)
        if sizes.DROP:
            keep = tl.trans(keep_mask(load_keys(p.keys_ptr, t, end, BT), p.matrix, columns, share.drop_threshold))
            dact += tl.where(keep, mma(a_down, tl.trans(ds), tl.zeros((BN, BT), tl.float32)), 0.0)
        else:
            dact = mma(a_down, tl.trans(ds), dact)
        act, dgate, dup = gated_gradients(gate, up, dact, sizes.GELU)
        act = act.to(dtype)
        dgate = dgate.to(dtype)
        dup = dup.to(dtype)
        store_tokens(p.gu_ptr, t, end, 2 * F, columns, F, tl.trans(dgate), BT)
        store_tokens(p.gu_ptr + F, t, end, 2 * F, columns, F, tl.trans(dup), BT)
        if sizes.DROP:
            act = tl.where(keep, act, 0.0)
        db_gate = mma(dgate, s_gate, db_gate)
        db_up = mma(dup, s_up, db_up)
        da_down = mma(act, ds, da_down)
    adds = share.accumulate
    squares = store_ranks(p.grad_ptr, p.grad_stride, p.gate_column, row0, rank, columns, F, tl.trans(db_gate), adds, R)
    squares += store_ranks(p.grad_ptr, p.grad_stride, p.up_column, row0, rank, columns, F, tl.trans(db_up), adds, R)
    squares += store_ranks(p.grad_ptr, p.grad_stride, p.down_column, row0, rank, columns, F, tl.trans(da_down), adds, R)
    if sizes.SQUARES:
        store_squares(p.squares_ptr, p.squares_stride, p.gate_column + p.first, row0, squares)


@triton.jit
def _backward(p, share, sizes, R: tl.constexpr):
    if R == 0:
        _backward_without_adapter(p, share, sizes)
    else:
        _backward_adapted(p, share, sizes, R)


@Kernel
@triton.jit(do_not_specialize=["matrix"])
def _swiglu_backward(
    gu_ptr, dact_ptr, s_ptr, ds_ptr, w_ptr, grad_ptr, squares_ptr, keys_ptr, spans_ptr, w_stride, grad_stride, squares_stride,
    gate_column, up_column, down_column, matrix, F, BT: tl.constexpr, BN: tl.constexpr, STAGES: tl.constexpr,
    RMAX: tl.constexpr, RCLASS: tl.constexpr, DROP: tl.constexpr, GELU: tl.constexpr, SQUARES: tl.constexpr,
):  # fmt: skip
    share = share_of_span(spans_ptr, tl.program_id(1))
    if share.start >= share.end:
        return
    first = tl.program_id(0) * BN
    operands = _SwigluBack(
        gu_ptr, dact_ptr, s_ptr, ds_ptr, w_ptr, w_stride, grad_ptr, grad_stride, squares_ptr, squares_stride, gate_column,
        up_column, down_column, keys_ptr, matrix, first, first + tl.arange(0, BN), F,
    )  # fmt: skip
    by_rank(_backward, operands, share, _Sizes(BT, BN, STAGES, RMAX, DROP, GELU, SQUARES), RCLASS, True)


def swiglu(
    gate_up: torch.Tensor, s: torch.Tensor | None, adapters: torch.Tensor, at: SwigluColumns, table: WorkTable
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """(act, s_down): act [T, F] of gate_up [T, 2F] with gate's and up's adapter products added in fp32; down's S [T, 1, RMAX].

    Without adapters (s None) s_down is None.
    """
    tokens, features = gate_up.shape[0], gate_up.shape[1] // 2
    act = torch.empty((tokens, features), dtype=gate_up.dtype, device=gate_up.device)
    rmax = table.max_rank if s is not None else 0
    chunks = -(-features // CHUNK)
    partials = torch.empty((chunks, tokens, 1, rmax), dtype=torch.float32, device=gate_up.device)
    for part in table.classes:
        rank = part.rank_class if s is not None else 0
        cfg = config("swiglu", rank)
        _swiglu[(chunks, part.blocks.shape[0])](
            gate_up, s if s is not None else gate_up, adapters, act, partials, table.keys if table.keys is not None else act,
            part.spans, part.scales, part.blocks, adapters.stride(0), at.b_gate, at.b_up, at.a_down, at.down_matrix, features,
            tokens, CHUNK=CHUNK, BT=BLOCK_T, BN=cfg.block_n * 2 // gate_up.element_size(), STAGES=cfg.stages, RMAX=rmax,
            RCLASS=rank, DROP=table.keys is not None, GELU=GATES[at.activation], num_warps=cfg.warps, num_stages=cfg.stages,
            maxnreg=cfg.registers,
        )  # fmt: skip
    return act, sum_partials(partials, table, gate_up.dtype) if s is not None else None


def swiglu_backward(
    gate_up: torch.Tensor,
    dact: torch.Tensor,
    s: torch.Tensor | None,
    ds_down: torch.Tensor | None,
    adapters: torch.Tensor,
    grad: Gradient,
    at: SwigluColumns,
    table: WorkTable,
) -> torch.Tensor:
    """Overwrites gate_up [T, 2F] with its gradient and returns it; writes dB of gate and up and dA of down to `grad`.

    dact [T, F] is the base's part of the gradient of act; this adds ds_down @ A_down. s and ds_down are None without adapters.
    """
    features, rmax = gate_up.shape[1] // 2, table.max_rank if s is not None else 0
    rows, squares = grad.rows, grad.squares if grad.squares is not None else grad.rows
    for part in table.classes:
        rank = part.rank_class if s is not None else 0
        cfg = config("swiglu_backward", rank)
        _swiglu_backward[(-(-features // cfg.block_n), part.spans.shape[0])](
            gate_up, dact, s if s is not None else gate_up, ds_down if ds_down is not None else gate_up, adapters, rows,
            squares, table.keys if table.keys is not None else dact, part.spans, adapters.stride(0), rows.stride(0),
            squares.stride(0), at.b_gate, at.b_up, at.a_down, at.down_matrix, features,
            BT=cfg.block_t, BN=cfg.block_n, STAGES=cfg.stages, RMAX=rmax, RCLASS=rank, DROP=table.keys is not None,
            GELU=GATES[at.activation], SQUARES=grad.squares is not None, num_warps=cfg.warps, num_stages=cfg.stages,
            maxnreg=cfg.registers,
        )  # fmt: skip
    return gate_up
