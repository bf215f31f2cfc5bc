"""The sums of squares that kernels write beside a gradient: each adapter's norm, whoever is in the pass with it."""

import pytest
import torch
from grouped_lora.adapter_spans import Span
from grouped_lora.block.swiglu import SwigluColumns, swiglu_backward
from grouped_lora.gradient import COLUMNS, ROWS, Gradient
from grouped_lora.optimizer.adamw import clip_scales
from grouped_lora.products.weight_gradients import weight_gradient
from grouped_lora.work_table import WorkTable, work_table

from tests.kernels.triton_case import DEVICE, DTYPES, Case, error, own, rows_of
from worker.model.arena import ROW_MULTIPLE
from worker.model.arena_layout import ALIGN

WIDTH, PITCH, MATRICES = 72, 80, 7  # a matrix's columns, and how far apart matrices begin
LENGTHS = (33, 150, 1, 70)


def empty(rows: int) -> Gradient:
    rows = -(-rows // ROWS) * ROWS
    width = MATRICES * PITCH
    return Gradient(torch.zeros(rows, width, device=DEVICE), torch.zeros(rows // ROWS, width // COLUMNS, device=DEVICE))


def write(grad: Gradient, case: Case, tensors: tuple[torch.Tensor, ...], table: WorkTable) -> None:
    """All that a pass writes: three matrices that share what they read, one that does not, and SwiGLU's three."""
    s, s_two, x, gate_up = tensors
    weight_gradient(s, x, grad, table, (0, PITCH, 2 * PITCH), (WIDTH, WIDTH, WIDTH), None)
    weight_gradient(s[:, :1].contiguous(), x, grad, table, (3 * PITCH,), (WIDTH,), (0,))
    at = SwigluColumns(4 * PITCH, 5 * PITCH, 6 * PITCH)
    swiglu_backward(gate_up.clone(), x, s_two, s[:, :1].contiguous(), case.weights, grad, at, table)


def norms(grad: Gradient, spans: list[Span]) -> torch.Tensor:
    """Each adapter's norm, by its sums of squares."""
    assert grad.squares is not None
    return clip_scales(grad.squares[None], rows_of(spans, [[0.0, 0.0, 1.0, 1.0, 1.0]] * len(spans)))[:, 0]


@pytest.mark.parametrize(("dtype", "ranks"), [*((dtype, (24, 16, 8, 64)) for dtype in DTYPES), (DTYPES[-1], (16, 256, 8, 104))])
def test_norms_are_the_gradients_packed_alone_and_where_it_adds(dtype: torch.dtype, ranks: tuple[int, ...]) -> None:
    case = Case(LENGTHS, width=MATRICES * PITCH, dtype=dtype, ranks=ranks, aligned=ROWS)
    tensors = case.shrunk(3), case.shrunk(2), case.tokens(WIDTH), case.tokens(2 * WIDTH)
    grad = empty(len(case.weights))
    assert grad.squares is not None
    write(grad, case, tensors, case.table)
    truth = torch.stack([grad.rows[s.row : s.row + s.rank].double().norm() for s in case.spans])
    packed = norms(grad, case.spans)
    assert error(packed, truth) < 1e-6

    span = case.spans[1]
    start = Span(0, span.stop - span.start, span.row, span.rank, span.scale)
    single = empty(len(case.weights))
    parts = tuple(own(part, span, part.dtype)[..., : max(16, span.rank) if part.ndim == 3 else None] for part in tensors)
    table = work_table([start], start.stop, DEVICE)
    write(single, case, tuple(_as_wide(part, table) for part in parts), table)
    assert torch.equal(norms(single, [start])[0], packed[1])

    write(grad, case, tensors, work_table(case.spans, case.total, DEVICE, accumulate=(True, False, True, False)))
    assert error(norms(grad, case.spans), truth * torch.tensor([2.0, 1.0, 2.0, 1.0], device=DEVICE)) < 1e-6


def _as_wide(part: torch.Tensor, table: WorkTable) -> torch.Tensor:
    """S of another pass in the width of this one's."""
    return part[..., : table.max_rank].contiguous() if part.ndim == 3 else part


def test_what_is_not_finite_is_in_its_own_adapters_norm_alone() -> None:
    case = Case(LENGTHS, width=MATRICES * PITCH, dtype=torch.float32, aligned=ROWS)
    tensors = case.shrunk(3), case.shrunk(2), case.tokens(WIDTH), case.tokens(2 * WIDTH)
    healthy = empty(len(case.weights))
    write(healthy, case, tensors, case.table)
    tensors[2][case.spans[1].start + 3] = float("nan")
    sick = empty(len(case.weights))
    write(sick, case, tensors, case.table)
    before, after = norms(healthy, case.spans), norms(sick, case.spans)
    assert after[1].isnan()
    assert torch.equal(after[[0, 2, 3]], before[[0, 2, 3]])


def test_a_row_that_is_skipped_has_no_norm_and_places_are_as_the_arena_allots_them() -> None:
    assert ROW_MULTIPLE % ROWS == 0
    assert ALIGN % COLUMNS == 0
    case = Case(LENGTHS, width=MATRICES * PITCH, dtype=torch.float32, aligned=ROWS)
    tensors = case.shrunk(3), case.shrunk(2), case.tokens(WIDTH), case.tokens(2 * WIDTH)
    grad = empty(len(case.weights))
    write(grad, case, tensors, case.table)
    assert grad.squares is not None
    table = rows_of(case.spans, [[0.0, 0.0, 1.0, 1.0, 1.0]] * 4)
    table.rows[: case.spans[0].rank] = -1
    found = clip_scales(grad.squares[None], table)[:, 0]
    assert found[0] == 0
    assert torch.equal(found[1:], norms(grad, case.spans)[1:])
