"""SwiGLU with the adapters' gate and up products joined in the same pass, forward and backward.

Each program owns one adapter's columns, keeps their B (and down's A) tiles on chip, and walks the adapter's own tokens, so that
each weight is read once. gate_up[T, 2F] holds the base product alone; the join is recomputed in backward instead of stored.
(Handing out dB and dA from here as well measured 808 us on an H100 where this pass and `outer` need about half: registers.)
"""

import torch
import triton
import triton.language as tl

from grouped_lora.launch import config
from grouped_lora.tiles import load_ranks, load_shrunk, load_tokens, mma, store_tokens
from grouped_lora.work import BLOCK_T, WorkTable


@triton.jit
def _forward(
    gu_ptr, s_ptr, w_ptr, act_ptr, w_stride, g_column, u_column, columns, F, start, end, row0, rank,
    BT: tl.constexpr, STAGES: tl.constexpr, RMAX: tl.constexpr, R: tl.constexpr,
):  # fmt: skip
    if R > 0:
        b_gate = load_ranks(w_ptr, w_stride, g_column, row0, rank, columns, F, R)
        b_up = load_ranks(w_ptr, w_stride, u_column, row0, rank, columns, F, R)
    for t in tl.range(start, end, BT, num_stages=STAGES):  # named here, since only then loads without a product are pipelined
        gate = load_tokens(gu_ptr, t, end, 2 * F, columns, F, BT).to(tl.float32)
        up = load_tokens(gu_ptr + F, t, end, 2 * F, columns, F, BT).to(tl.float32)
        if R > 0:
            gate = mma(load_shrunk(s_ptr, 2 * RMAX, 0, t, end, rank, BT, R), b_gate, gate)
            up = mma(load_shrunk(s_ptr, 2 * RMAX, RMAX, t, end, rank, BT, R), b_up, up)
        store_tokens(act_ptr, t, end, F, columns, F, gate * tl.sigmoid(gate) * up, BT)


@triton.jit
def _swiglu(
    gu_ptr, s_ptr, w_ptr, act_ptr, spans_ptr, w_stride, g_column, u_column, F,
    BT: tl.constexpr, BN: tl.constexpr, STAGES: tl.constexpr, RMAX: tl.constexpr,
):  # fmt: skip
    span = tl.program_id(0)
    start = tl.load(spans_ptr + span * 5)
    end = tl.load(spans_ptr + span * 5 + 1)
    row0 = tl.load(spans_ptr + span * 5 + 2)
    rank = tl.load(spans_ptr + span * 5 + 3)
    if start >= end:
        return
    columns = tl.program_id(1) * BN + tl.arange(0, BN)
    if RMAX == 0:
        _forward(
            gu_ptr, s_ptr, w_ptr, act_ptr, w_stride, g_column, u_column, columns, F, start, end, row0, rank, BT, STAGES, RMAX, 0
        )
    else:
        if rank == 0:
            _forward(gu_ptr, s_ptr, w_ptr, act_ptr, w_stride, g_column, u_column, columns, F, start, end, row0, rank,
                     BT, STAGES, RMAX, 0)  # fmt: skip
        elif rank <= 16:
            _forward(gu_ptr, s_ptr, w_ptr, act_ptr, w_stride, g_column, u_column, columns, F, start, end, row0, rank,
                     BT, STAGES, RMAX, 16)  # fmt: skip
        elif (rank <= 32) | (RMAX <= 32):
            _forward(gu_ptr, s_ptr, w_ptr, act_ptr, w_stride, g_column, u_column, columns, F, start, end, row0, rank,
                     BT, STAGES, RMAX, 32)  # fmt: skip
        else:
            _forward(gu_ptr, s_ptr, w_ptr, act_ptr, w_stride, g_column, u_column, columns, F, start, end, row0, rank,
                     BT, STAGES, RMAX, RMAX)  # fmt: skip


@triton.jit
def _backward(
    gu_ptr, dact_ptr, s_ptr, ds_ptr, w_ptr, w_stride, g_column, u_column, a_column, columns, F, start, end, row0, rank,
    BT: tl.constexpr, STAGES: tl.constexpr, RMAX: tl.constexpr, R: tl.constexpr,
):  # fmt: skip
    if R > 0:
        b_gate = load_ranks(w_ptr, w_stride, g_column, row0, rank, columns, F, R)
        b_up = load_ranks(w_ptr, w_stride, u_column, row0, rank, columns, F, R)
        a_down = load_ranks(w_ptr, w_stride, a_column, row0, rank, columns, F, R)
    for t in tl.range(start, end, BT, num_stages=STAGES):  # named here, since only then loads without a product are pipelined
        gate = load_tokens(gu_ptr, t, end, 2 * F, columns, F, BT).to(tl.float32)
        up = load_tokens(gu_ptr + F, t, end, 2 * F, columns, F, BT).to(tl.float32)
        dact = load_tokens(dact_ptr, t, end, F, columns, F, BT).to(tl.float32)
        if R > 0:
            gate = mma(load_shrunk(s_ptr, 2 * RMAX, 0, t, end, rank, BT, R), b_gate, gate)
            up = mma(load_shrunk(s_ptr, 2 * RMAX, RMAX, t, end, rank, BT, R), b_up, up)
            dact = mma(load_shrunk(ds_ptr, RMAX, 0, t, end, rank, BT, R), a_down, dact)
        sigmoid = tl.sigmoid(gate)
        silu = gate * sigmoid
        store_tokens(gu_ptr, t, end, 2 * F, columns, F, dact * up * (sigmoid + silu * (1.0 - sigmoid)), BT)
        store_tokens(gu_ptr + F, t, end, 2 * F, columns, F, dact * silu, BT)


@triton.jit
def _swiglu_backward(
    gu_ptr, dact_ptr, s_ptr, ds_ptr, w_ptr, spans_ptr, w_stride, g_column, u_column, a_column, F,
    BT: tl.constexpr, BN: tl.constexpr, STAGES: tl.constexpr, RMAX: tl.constexpr,
):  # fmt: skip
    span = tl.program_id(0)
    start = tl.load(spans_ptr + span * 5)
    end = tl.load(spans_ptr + span * 5 + 1)
    row0 = tl.load(spans_ptr + span * 5 + 2)
    rank = tl.load(spans_ptr + span * 5 + 3)
    if start >= end:
        return
    columns = tl.program_id(1) * BN + tl.arange(0, BN)
    if RMAX == 0:
        _backward(gu_ptr, dact_ptr, s_ptr, ds_ptr, w_ptr, w_stride, g_column, u_column, a_column, columns, F, start, end,
                  row0, rank, BT, STAGES, RMAX, 0)  # fmt: skip
    else:
        if rank == 0:
            _backward(gu_ptr, dact_ptr, s_ptr, ds_ptr, w_ptr, w_stride, g_column, u_column, a_column, columns, F, start, end,
                      row0, rank, BT, STAGES, RMAX, 0)  # fmt: skip
        elif rank <= 16:
            _backward(gu_ptr, dact_ptr, s_ptr, ds_ptr, w_ptr, w_stride, g_column, u_column, a_column, columns, F, start, end,
                      row0, rank, BT, STAGES, RMAX, 16)  # fmt: skip
        elif (rank <= 32) | (RMAX <= 32):
            _backward(gu_ptr, dact_ptr, s_ptr, ds_ptr, w_ptr, w_stride, g_column, u_column, a_column, columns, F, start, end,
                      row0, rank, BT, STAGES, RMAX, 32)  # fmt: skip
        else:
            _backward(gu_ptr, dact_ptr, s_ptr, ds_ptr, w_ptr, w_stride, g_column, u_column, a_column, columns, F, start, end,
                      row0, rank, BT, STAGES, RMAX, RMAX)  # fmt: skip


def swiglu(
    gate_up: torch.Tensor, s: torch.Tensor | None, adapters: torch.Tensor, b_columns: tuple[int, int], table: WorkTable
) -> torch.Tensor:
    """act [T, F] = silu(gate + s[:, 0] Bᵀ_gate) * (up + s[:, 1] Bᵀ_up) of gate_up [T, 2F], the joins in fp32."""
    features = gate_up.shape[1] // 2
    act = torch.empty((gate_up.shape[0], features), dtype=gate_up.dtype, device=gate_up.device)
    width = table.max_rank if s is not None else 0
    cfg = config("swiglu", width)
    _swiglu[(table.spans.shape[0], -(-features // cfg.block_n))](
        gate_up, s if s is not None else gate_up, adapters, act, table.spans, adapters.stride(0), *b_columns, features,
        BT=BLOCK_T, BN=cfg.block_n, STAGES=cfg.stages, RMAX=width, num_warps=cfg.warps, num_stages=cfg.stages,
    )  # fmt: skip
    return act


def swiglu_backward(
    gate_up: torch.Tensor,
    dact: torch.Tensor,
    s: torch.Tensor | None,
    ds_down: torch.Tensor | None,
    adapters: torch.Tensor,
    b_columns: tuple[int, int],
    a_column: int,
    table: WorkTable,
) -> torch.Tensor:
    """Overwrites gate_up [T, 2F] with its gradient and returns it.

    dact [T, F] is the base's part of the gradient of act: ds_down @ A_down joins here. s and ds_down are None without adapters.
    """
    features = gate_up.shape[1] // 2
    width = table.max_rank if s is not None else 0
    cfg = config("swiglu_backward", width)
    _swiglu_backward[(table.spans.shape[0], -(-features // cfg.block_n))](
        gate_up, dact, s if s is not None else gate_up, ds_down if ds_down is not None else gate_up, adapters, table.spans,
        adapters.stride(0), *b_columns, a_column, features,
        BT=BLOCK_T, BN=cfg.block_n, STAGES=cfg.stages, RMAX=width, num_warps=cfg.warps, num_stages=cfg.stages,
    )  # fmt: skip
    return gate_up
