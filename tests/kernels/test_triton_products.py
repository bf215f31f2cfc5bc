"""The Triton kernels of the adapters' products against float64, on ugly shapes with poisoned buffers and NaN neighbours.

Runs under Triton's interpreter on the CPU, and compiled where there is a CUDA device.
"""

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from grouped_lora.adapter_spans import Span
from grouped_lora.block.swiglu import CHUNK, SwigluColumns, swiglu, swiglu_backward
from grouped_lora.gradient import Gradient
from grouped_lora.products.expand import expand
from grouped_lora.products.shrink import shrink
from grouped_lora.products.weight_gradients import weight_gradient
from grouped_lora.work_table import work_table
from torch.nn.functional import gelu, silu

from tests.kernels.triton_case import DEVICE, DTYPES, RANKS, Case, close, own

EDGES = (65, 17, 33)  # each one above what a narrower tile holds; above 64 each matrix has a program of its own


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("lengths", "dropout", "ranks"),
    [
        *((lengths, 0.0, RANKS) for lengths in ((0, 1, 17, 129), (64, 3), (5,))),
        *((lengths, 0.25, RANKS) for lengths in ((17, 1, 66), (5,))),
        ((3, 5, 7), 0.25, EDGES),
    ],
)
def test_shrink_with_one_shared_input(
    dtype: torch.dtype, lengths: tuple[int, ...], dropout: float, ranks: tuple[int, ...]
) -> None:
    case = Case(lengths, width=3 * 96, dtype=dtype, dropout=dropout, ranks=ranks)
    x = case.tokens(96)
    s = torch.full((case.total, 3, case.table.max_rank), float("nan"), dtype=dtype, device=DEVICE)
    shrink(x, case.weights, case.table, (0, 96, 192), (96, 96, 96), out=s, dropout_matrix=5)
    for span in case.spans:
        for mat in range(3):

            def plain(kind: torch.dtype, span: Span = span, mat: int = mat) -> torch.Tensor:
                seen = own(x, span, kind) * case.seen(span, 5 + mat, 96, kind)
                return span.kept_scale * (seen @ case.rows(span)[:, mat * 96 : mat * 96 + 96].to(kind).T)

            close(s[span.start : span.stop, mat, : span.rank], plain, dtype)


def test_shrink_with_columns_of_each_matrix_and_split_sums() -> None:
    case = Case((17, 3), width=5000 + 40, dtype=torch.float32)
    x = case.tokens(5040)
    s = shrink(x, case.weights, case.table, (0, 5000), (5000, 40), x_starts=(0, 5000))
    for span in case.spans:
        for mat, (at, width) in enumerate(((0, 5000), (5000, 40))):
            want = span.scale * own(x, span)[:, at : at + width] @ case.rows(span)[:, at : at + width].double().T
            close(s[span.start : span.stop, mat, : span.rank], lambda kind, want=want: want.to(kind), torch.float32)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("shared", "dropout", "ranks"), [(True, 0.0, RANKS), (True, 0.3, RANKS), (False, 0.0, RANKS), (True, 0.3, EDGES)]
)
def test_outer_writes_exactly_the_adapters_rows(
    dtype: torch.dtype, shared: bool, dropout: float, ranks: tuple[int, ...]
) -> None:
    case = Case((0, 1, 17, 129) if ranks == RANKS else (3, 5, 7), width=2 * 80, dtype=dtype, dropout=dropout, ranks=ranks)
    y = case.tokens(80 if shared else 160)
    s = case.shrunk(2)
    grad = torch.full(case.weights.shape, 7.0, device=DEVICE)
    weight_gradient(
        s, y, Gradient(grad), case.table, (0, 80), (80, 80), None if shared else (0, 80), dropout_matrix=3 if shared else None
    )
    written = torch.zeros_like(grad, dtype=torch.bool)
    for span in case.spans:
        for mat in range(2):
            columns = slice(80 * mat, 80 * mat + 80)
            part = slice(0, 80) if shared else columns

            def plain(kind: torch.dtype, span: Span = span, mat: int = mat, part: slice = part) -> torch.Tensor:
                fed = own(y, span, kind)[:, part]
                if shared:
                    fed = fed * case.seen(span, 3 + mat, 80, kind)
                return s[span.start : span.stop, mat, : span.rank].to(kind).T @ fed

            if span.stop > span.start:
                close(grad[span.row : span.row + span.rank, columns], plain, dtype)
                written[span.row : span.row + span.rank, columns] = True
    assert (grad[~written] == 7.0).all()


def test_outer_adds_where_the_span_says_so() -> None:
    case = Case((9, 9), width=64, dtype=torch.float32)
    second = work_table(case.spans, case.total, DEVICE, accumulate=(False, True))
    y, s = case.tokens(64), case.shrunk(1)
    once = torch.full(case.weights.shape, float("nan"), device=DEVICE)
    weight_gradient(s, y, Gradient(once), case.table, (0,), (64,))
    twice = once.clone()
    weight_gradient(s, y, Gradient(twice), second, (0,), (64,))
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
        weight_gradient(s, tokens, Gradient(grad), table, (0, 64), (64, 64))
        y = expand(s[:, :1].contiguous(), packed.weights, 0, 64, table)
        length = span.stop - span.start
        results.append(
            (s[at : at + length, :, : span.rank].clone(), grad[span.row : span.row + span.rank], y[at : at + length])
        )
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))
    assert all(torch.isfinite(part.float()).all() for part in results[0])


@pytest.mark.parametrize("dtype", DTYPES)
def test_views_with_strides_of_their_own_are_read_and_written_as_such(dtype: torch.dtype) -> None:
    case = Case((17, 0, 5), width=64, dtype=dtype)
    wide_x, wide_w = (
        torch.full((part.shape[0], part.shape[1] + 27), float("nan"), dtype=dtype, device=DEVICE)
        for part in (case.tokens(64), case.weights)
    )
    x, weights = wide_x[:, 11:75], wide_w[:, 3:67]  # neighbours on both sides, no start on 16 bytes
    x.copy_(case.tokens(64))
    weights.copy_(case.weights)
    wide_grad = torch.full((case.weights.shape[0], 80), 7.0, device=DEVICE)
    s = shrink(x, weights, case.table, (0,), (64,))
    weight_gradient(s, x, Gradient(wide_grad[:, 5:69]), case.table, (0,), (64,))
    plain_s = shrink(x.contiguous(), case.weights, case.table, (0,), (64,))
    plain_grad = torch.full(case.weights.shape, 7.0, device=DEVICE)
    weight_gradient(plain_s, x.contiguous(), Gradient(plain_grad), case.table, (0,), (64,))
    for span in case.spans:
        assert torch.equal(s[span.start : span.stop, 0, : span.rank], plain_s[span.start : span.stop, 0, : span.rank])
    assert torch.equal(wide_grad[:, 5:69], plain_grad)
    assert (wide_grad[:, :5] == 7.0).all()
    assert (wide_grad[:, 69:] == 7.0).all()
    assert torch.equal(expand(s, weights, 0, 64, case.table), expand(s, case.weights, 0, 64, case.table))


@pytest.mark.parametrize("dtype", DTYPES)
def test_expand_writes_zero_where_there_is_no_adapter(dtype: torch.dtype) -> None:
    case = Case((17, 1, 66), width=72, dtype=dtype, tail=21)
    s = case.shrunk(1)
    y = expand(s, case.weights, 0, 72, case.table)
    for span in case.spans:

        def plain(kind: torch.dtype, span: Span = span) -> torch.Tensor:
            return s[span.start : span.stop, 0, : span.rank].to(kind) @ case.rows(span).to(kind)

        close(y[span.start : span.stop], plain, dtype)
    assert (y[case.total - 21 :] == 0).all()


@dataclass(frozen=True)
class Swiglu:
    """What one part of the axis gives in one precision: act, down's S, the gradient of gate and up, and the adapter's own."""

    act: torch.Tensor
    s_down: torch.Tensor
    dgu: torch.Tensor
    grads: torch.Tensor


class SwigluCase:
    """A step of SwiGLU or GeGLU with adapters on gate, up and down, and the same in plain PyTorch."""

    FEATURES = 80
    MATRIX = 6  # down's number

    def __init__(self, dtype: torch.dtype, dropout: float, activation: str = "silu") -> None:
        self.at = SwigluColumns(0, self.FEATURES, 2 * self.FEATURES, self.MATRIX, activation)
        lengths = (17, 1, 40) if dropout else (0, 1, 17, 129)  # the mask is dear to interpret, and knows no lengths
        self.case = Case(lengths, width=3 * self.FEATURES, dtype=dtype, tail=30, dropout=dropout)
        self.gate_up, self.dact = self.case.tokens(2 * self.FEATURES), self.case.tokens(self.FEATURES)
        self.s, self.ds = self.case.shrunk(2), self.case.shrunk(1)

    def plain(self, kind: torch.dtype, part: slice, span: Span | None) -> Swiglu:
        features = self.FEATURES
        wide = self.gate_up[part].to(kind)
        gate, up, dact = wide[:, :features].clone(), wide[:, features:].clone(), self.dact[part].to(kind)
        s_gate, s_up, ds, seen = (torch.zeros(len(wide), 0, dtype=kind, device=DEVICE) for _ in range(4))
        b_gate, b_up, a_down = (torch.zeros(0, features, dtype=kind, device=DEVICE) for _ in range(3))
        if span:
            b_gate, b_up, a_down = self.case.rows(span).to(kind).split(features, 1)
            s_gate, s_up = (self.s[part, mat, : span.rank].to(kind) for mat in range(2))
            ds, seen = self.ds[part, 0, : span.rank].to(kind), self.case.seen(span, self.MATRIX, features, kind)
            gate, up, dact = gate + s_gate @ b_gate, up + s_up @ b_up, dact + (ds @ a_down) * seen
        leaf = gate.requires_grad_()
        opened = silu(leaf) if self.at.activation == "silu" else gelu(leaf, approximate="tanh")
        (slope,) = torch.autograd.grad(opened.sum(), leaf)
        opened = opened.detach()
        act = opened * up
        fed = act * seen if span else act
        dgate, dup = dact * up * slope, dact * opened
        s_down = (fed @ a_down.T) * (span.kept_scale if span else 0.0)
        return Swiglu(act, s_down, torch.cat([dgate, dup], 1), torch.cat([s_gate.T @ dgate, s_up.T @ dup, ds.T @ fed], 1))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("dropout", "activation"), [(0.0, "silu"), (0.25, "silu"), (0.0, "gelu_pytorch_tanh")])
def test_swiglu_downs_s_and_all_gradients(dtype: torch.dtype, dropout: float, activation: str) -> None:
    it = SwigluCase(dtype, dropout, activation)
    case = it.case
    act, s_down = swiglu(it.gate_up, it.s, case.weights, it.at, case.table)
    assert s_down is not None
    grad = torch.full(case.weights.shape, 7.0, device=DEVICE)
    dgu = swiglu_backward(it.gate_up.clone(), it.dact, it.s, it.ds, case.weights, Gradient(grad), it.at, case.table)
    untouched = torch.ones(len(grad), dtype=torch.bool)
    for span in [*case.spans, None]:
        part = slice(span.start, span.stop) if span else slice(case.total - 30, case.total)
        close(act[part], lambda kind, part=part, span=span: it.plain(kind, part, span).act, dtype)
        close(dgu[part], lambda kind, part=part, span=span: it.plain(kind, part, span).dgu, dtype)
        if span and span.stop > span.start:
            rows = slice(span.row, span.row + span.rank)
            close(s_down[part, 0, : span.rank], lambda kind, part=part, span=span: it.plain(kind, part, span).s_down, dtype)
            close(grad[rows], lambda kind, part=part, span=span: it.plain(kind, part, span).grads, dtype)
            untouched[rows] = False
    assert (grad[untouched.to(DEVICE)] == 7.0).all()


def test_swiglu_sums_downs_s_over_pieces_and_without_adapters_is_plain() -> None:
    features = CHUNK + 72
    case = Case((17, 3), width=3 * features, dtype=torch.float32)
    gate_up, s, at = case.tokens(2 * features), case.shrunk(2), SwigluColumns(0, features, 2 * features)
    act, s_down = swiglu(gate_up, s, case.weights, at, case.table)
    assert s_down is not None
    for span in case.spans:
        want = span.scale * own(act, span) @ case.rows(span)[:, 2 * features :].double().T
        close(s_down[span.start : span.stop, 0, : span.rank], lambda kind, want=want: want.to(kind), torch.float32)
    bare, none = swiglu(gate_up, None, case.weights, at, case.table)
    assert none is None
    gate, up = gate_up.double().chunk(2, 1)
    close(bare, lambda kind: (silu(gate) * up).to(kind), torch.float32)


@pytest.mark.skipif(DEVICE == "cuda", reason="NOT RUN: a file of 9 GB without content is the host's")
def test_rows_of_a_wide_adapter_are_found_in_an_arena_of_more_than_2_31_numbers(tmp_path: Path) -> None:
    rank, width = 200, 2**31 // 190 // 16 * 16  # its last rows begin beyond 2^31 numbers from its first
    span = Span(0, 5, 0, rank, 1.0)
    table, s, y = work_table([span], 5, DEVICE), torch.randn(5, 1, 256), torch.randn(5, 64)
    sparse = torch.from_file(str(tmp_path / "arena"), shared=True, size=rank * width, dtype=torch.float32)
    rows = sparse.view(rank, width)[:, :64]
    weight_gradient(s, y, Gradient(rows), table, (0,), (64,))
    torch.testing.assert_close(rows, s[:, 0, :rank].T @ y)
    x = expand(s, rows, 0, 64, table)
    torch.testing.assert_close(x, s[:, 0, :rank] @ rows, rtol=1e-4, atol=1e-4)
