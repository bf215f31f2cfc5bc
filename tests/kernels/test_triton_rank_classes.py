"""Kernels on packs of several rank classes (4, 16, 64, 256): against float64, and an adapter's bits alone and packed.

Runs under Triton's interpreter on the CPU, and compiled where there is a CUDA device.
"""

from collections.abc import Callable

import pytest
import torch
from grouped_lora.adapter_spans import Span
from grouped_lora.block.packed_attention import attention
from grouped_lora.block.packed_attention_backward import AdapterInputGradient, attention_backward
from grouped_lora.block.qkv_rotary import rotary
from grouped_lora.block.residual_norm import norm_backward, residual_norm
from grouped_lora.block.sequence_table import SequenceTable, sequence_blocks
from grouped_lora.block.swiglu import SwigluColumns, swiglu, swiglu_backward
from grouped_lora.gradient import Gradient
from grouped_lora.products.expand import expand
from grouped_lora.products.shrink import shrink
from grouped_lora.products.weight_gradients import weight_gradient
from grouped_lora.work_table import WorkTable, work_table

from tests.kernels.triton_case import DEVICE, DTYPES, Case, close, own

RANKS = (256, 16, 4, 64)
LENGTHS = (33, 70, 5, 17)
D, HEADS = 48, (2, 1)  # 48 is 4 heads of 12, or 3 matrices of 16


@pytest.mark.parametrize("dtype", DTYPES[-1:])  # compiled, fp32 takes minutes at rank 256
def test_s_and_both_gradients_of_every_class(dtype: torch.dtype) -> None:
    case = Case(LENGTHS, width=2 * D, dtype=dtype, tail=9, ranks=RANKS)
    x = case.tokens(D)
    s = shrink(x, case.weights, case.table, (0, D), (D, D))
    grad = torch.full(case.weights.shape, 7.0, device=DEVICE)
    weight_gradient(s, x, Gradient(grad), case.table, (0, D), (D, D))
    y = expand(s[:, :1].contiguous(), case.weights, 0, D, case.table)
    written = torch.zeros_like(grad, dtype=torch.bool)
    for span in case.spans:
        rows, part = slice(span.row, span.row + span.rank), slice(span.start, span.stop)

        def shrunk(kind: torch.dtype, span: Span = span) -> torch.Tensor:
            return span.scale * own(x, span, kind) @ case.rows(span)[:, :D].to(kind).T

        def factor(kind: torch.dtype, span: Span = span, part: slice = part) -> torch.Tensor:
            return s[part, 0, : span.rank].to(kind).T @ own(x, span, kind)

        def grown(kind: torch.dtype, span: Span = span, part: slice = part) -> torch.Tensor:
            return s[part, 0, : span.rank].to(kind) @ case.rows(span)[:, :D].to(kind)

        close(s[part, 0, : span.rank], shrunk, dtype)
        close(grad[rows, :D], factor, dtype)
        close(y[part], grown, dtype)
        written[rows] = True
    assert (grad[~written] == 7.0).all()
    assert (y[case.total - 9 :] == 0).all()


class Inputs:
    """Activations of every kernel, drawn once for all tokens; `part` picks those of one table."""

    def __init__(self, case: Case) -> None:
        self.x, self.y, self.wide = case.tokens(D), case.tokens(D), case.tokens(2 * D)
        self.s = {mats: case.shrunk(mats).nan_to_num() for mats in (1, 2, 3)}


def of_products(case: Case, data: Inputs, table: WorkTable, part: slice) -> list[torch.Tensor]:
    x, grad = data.x[part].contiguous(), torch.zeros(case.weights.shape, device=DEVICE)
    s = shrink(x, case.weights, table, (0, D), (D, D))
    weight_gradient(s, x, Gradient(grad), table, (0, D), (D, D))
    return [grad, expand(s[:, :1].contiguous(), case.weights, 0, D, table)]


def of_norms(case: Case, data: Inputs, table: WorkTable, part: slice) -> list[torch.Tensor]:
    x, y = data.x[part].contiguous(), data.y[part].contiguous()
    s = {mats: narrowed(data.s[mats][part], table) for mats in (1, 2)}
    weight = data.x[0].contiguous()
    total, h, rstd = residual_norm(x, y, s[1], case.weights, D, weight, 1e-5, table)
    return [total, h, norm_backward(y, s[2], s[2], case.weights, (0, D), total, rstd, weight, x, table)]


def of_swiglu(case: Case, data: Inputs, table: WorkTable, part: slice) -> list[torch.Tensor]:
    at, grad = SwigluColumns(0, D, 2 * D), torch.zeros(case.weights.shape, device=DEVICE)
    s = {mats: narrowed(data.s[mats][part], table) for mats in (1, 2)}
    gate_up = data.wide[part].contiguous()
    act, _ = swiglu(gate_up, s[2], case.weights, at, table)
    back = swiglu_backward(gate_up.clone(), data.x[part].contiguous(), s[2], s[1], case.weights, Gradient(grad), at, table)
    return [act, back, grad]


def of_attention(case: Case, data: Inputs, table: WorkTable, part: slice) -> list[torch.Tensor]:
    qkv = data.x[part].clone()
    cos = torch.ones(4, 6, device=DEVICE)
    places = torch.zeros(len(qkv), dtype=torch.int32, device=DEVICE)
    rotary(qkv, narrowed(data.s[3][part], table), case.weights, (0, 24, 36), cos, 0.5 * cos, places, HEADS, table)
    bounds = sorted({*(edge for row in table.spans.tolist() for edge in row[:2]), len(qkv)})
    sequences = SequenceTable(torch.from_numpy(sequence_blocks(bounds, None, table.spans.cpu().numpy())).to(DEVICE))
    out, lse = attention(qkv, sequences, HEADS, 0.3)
    incoming = AdapterInputGradient(narrowed(data.s[1][part], table), case.weights, 0, table, 0)
    dout = data.y[part][:, :24].contiguous()
    return [qkv, out, attention_backward(dout, qkv, out, lse, sequences, HEADS, 0.3, incoming=incoming), dout]


def narrowed(s: torch.Tensor, table: WorkTable) -> torch.Tensor:
    """S as wide as this table stores it."""
    return s[:, :, : table.max_rank].contiguous()


@pytest.mark.parametrize("call", [of_products, of_norms, of_swiglu, of_attention])
@pytest.mark.parametrize("dtype", DTYPES[-1:])  # compiled, fp32 takes minutes at rank 256
def test_an_adapters_bits_know_no_class_beside_it(
    dtype: torch.dtype, call: Callable[[Case, Inputs, WorkTable, slice], list[torch.Tensor]]
) -> None:
    case = Case(LENGTHS, width=3 * D, dtype=dtype, ranks=RANKS)
    data = Inputs(case)
    packed = call(case, data, case.table, slice(0, case.total))
    for span in case.spans:
        part, rows = slice(span.start, span.stop), slice(span.row, span.row + span.rank)
        length = span.stop - span.start
        table = work_table([Span(0, length, span.row, span.rank, span.scale)], length, DEVICE)
        for got, alone in zip(packed, call(case, data, table, part), strict=True):
            if got.shape == case.weights.shape:
                assert torch.equal(got[rows], alone[rows])
                assert (alone[: span.row] == 0).all()
            else:
                assert torch.equal(got[part], alone)
