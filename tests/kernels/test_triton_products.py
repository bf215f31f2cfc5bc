"""The Triton kernels of the adapters' products against float64, on ugly shapes with poisoned buffers and NaN neighbours.

Runs under Triton's interpreter on the CPU, and compiled where there is a CUDA device.
"""

import pytest
import torch
from grouped_lora.expand import expand
from grouped_lora.outer import outer
from grouped_lora.shrink import shrink
from grouped_lora.span import Span
from grouped_lora.swiglu import swiglu, swiglu_backward
from grouped_lora.work import work_table

from tests.kernels.triton_case import DEVICE, DTYPES, Case, close, own

LENGTHS = [(0, 1, 17, 129), (64, 3), (5,)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("lengths", LENGTHS)
def test_shrink_with_one_shared_input(dtype: torch.dtype, lengths: tuple[int, ...]) -> None:
    case = Case(lengths, width=3 * 96, dtype=dtype)
    x = case.tokens(96)
    s = torch.full((case.total, 3, case.table.max_rank), float("nan"), dtype=dtype, device=DEVICE)
    shrink(x, case.weights, case.table, (0, 96, 192), (96, 96, 96), out=s)
    for span in case.spans:
        for mat in range(3):
            want = span.scale * own(x, span) @ case.rows(span)[:, mat * 96 : mat * 96 + 96].double().T
            close(s[span.start : span.stop, mat, : span.rank], want, dtype)


def test_shrink_with_columns_of_each_matrix_and_split_sums() -> None:
    case = Case((17, 70), width=5000 + 40, dtype=torch.float32)
    x = case.tokens(5040)
    s = shrink(x, case.weights, case.table, (0, 5000), (5000, 40), x_columns=(0, 5000))
    for span in case.spans:
        for mat, (at, width) in enumerate(((0, 5000), (5000, 40))):
            want = span.scale * own(x, span)[:, at : at + width] @ case.rows(span)[:, at : at + width].double().T
            close(s[span.start : span.stop, mat, : span.rank], want, torch.float32)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shared", [True, False])
def test_outer_writes_exactly_the_adapters_rows(dtype: torch.dtype, shared: bool) -> None:
    case = Case((0, 1, 17, 129), width=2 * 80, dtype=dtype)
    y = case.tokens(80 if shared else 160)
    s = case.shrunk(2)
    grad = torch.full(case.weights.shape, 7.0, device=DEVICE)
    outer(s, y, grad, case.table, (0, 80), (80, 80), None if shared else (0, 80))
    written = torch.zeros_like(grad, dtype=torch.bool)
    for span in case.spans:
        for mat in range(2):
            columns = slice(80 * mat, 80 * mat + 80)
            want = s[span.start : span.stop, mat, : span.rank].double().T @ own(y, span)[:, slice(0, 80) if shared else columns]
            if span.stop > span.start:
                close(grad[span.row : span.row + span.rank, columns], want, dtype)
                written[span.row : span.row + span.rank, columns] = True
    assert (grad[~written] == 7.0).all()


def test_outer_adds_where_the_span_says_so() -> None:
    case = Case((9, 9), width=64, dtype=torch.float32)
    second = work_table(case.spans, case.total, DEVICE, accumulate=(False, True))
    y, s = case.tokens(64), case.shrunk(1)
    once = torch.full(case.weights.shape, float("nan"), device=DEVICE)
    outer(s, y, once, case.table, (0,), (64,))
    twice = once.clone()
    outer(s, y, twice, second, (0,), (64,))
    a, b = (slice(span.row, span.row + span.rank) for span in case.spans)
    assert torch.equal(twice[a], once[a])
    assert torch.equal(twice[b], 2 * once[b])


@pytest.mark.parametrize("dtype", DTYPES)
def test_an_adapters_numbers_are_bitwise_the_same_alone_packed_and_again(dtype: torch.dtype) -> None:
    packed = Case((33, 0, 129, 1), width=2 * 64, dtype=dtype)
    x = packed.tokens(64)
    span = packed.spans[2]
    alone = work_table([Span(0, span.stop - span.start, span.row, span.rank, span.scale)], span.stop - span.start, DEVICE)
    poisoned = x.clone()
    poisoned[: span.start] = float("nan")
    poisoned[span.stop :] = float("nan")
    results = []
    for tokens, table, at in (
        (x, packed.table, span.start),
        (poisoned, packed.table, span.start),
        (own(x, span, x.dtype), alone, 0),
    ):
        s = shrink(tokens, packed.weights, table, (0, 64), (64, 64))
        grad = torch.zeros(packed.weights.shape, device=DEVICE)
        outer(s, tokens, grad, table, (0, 64), (64, 64))
        y = expand(s[:, :1].contiguous(), packed.weights, 0, 64, table)
        length = span.stop - span.start
        results.append(
            (s[at : at + length, :, : span.rank].clone(), grad[span.row : span.row + span.rank], y[at : at + length])
        )
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))
    assert all(torch.isfinite(part.float()).all() for part in results[0])


@pytest.mark.parametrize("dtype", DTYPES)
def test_expand_writes_zero_where_there_is_no_adapter(dtype: torch.dtype) -> None:
    case = Case((17, 1, 66), width=72, dtype=dtype, tail=21)
    s = case.shrunk(1)
    y = expand(s, case.weights, 0, 72, case.table)
    for span in case.spans:
        close(y[span.start : span.stop], s[span.start : span.stop, 0, : span.rank].double() @ case.rows(span).double(), dtype)
    assert (y[case.total - 21 :] == 0).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_swiglu_and_its_gradients(dtype: torch.dtype) -> None:
    features = 80
    case = Case((0, 1, 17, 129), width=3 * features, dtype=dtype, tail=30)
    gate_up, dact = case.tokens(2 * features), case.tokens(features)
    s, ds = case.shrunk(2), case.shrunk(1)
    columns, a_column = (0, features), 2 * features
    act = swiglu(gate_up, s, case.weights, columns, case.table)
    dgu = swiglu_backward(gate_up.clone(), dact, s, ds, case.weights, columns, a_column, case.table)
    tail = case.total - 30
    for span in [*case.spans, None]:
        part = slice(span.start, span.stop) if span else slice(tail, case.total)
        wide = gate_up[part].double()
        gate, up = wide[:, :features].clone(), wide[:, features:].clone()
        down = dact[part].double()
        if span:
            rows = case.rows(span).double()
            gate += s[part, 0, : span.rank].double() @ rows[:, :features]
            up += s[part, 1, : span.rank].double() @ rows[:, features : 2 * features]
            down = down + ds[part, 0, : span.rank].double() @ rows[:, a_column:]
        gate.requires_grad_()
        up.requires_grad_()
        want = torch.nn.functional.silu(gate) * up
        want.backward(down)
        assert gate.grad is not None
        assert up.grad is not None
        close(act[part], want.detach(), dtype)
        close(dgu[part], torch.cat([gate.grad, up.grad], 1), dtype)
