"""Grouped LoRA's truth against dense autograd in float64, on ragged spans, with poison where nobody may look."""

from collections.abc import Sequence

import pytest
import torch
from grouped_lora import Adapters, Group, Part, Span, grouped_linear
from grouped_lora.products import reference
from torch import Tensor

T, K, ROWS, COLUMNS = 61, 20, 40, 400
GROUPS = {
    "one": Group(a=16, pitch=32, in_features=K, parts=(Part(b=48, y=0, width=33),)),
    "three": Group(a=16, pitch=32, in_features=K, parts=(Part(128, 0, 36), Part(176, 36, 18), Part(208, 54, 18))),
}
SPANS = (
    Span(start=0, stop=7, row=8, rank=8, scale=2.0),
    Span(start=7, stop=7, row=0, rank=3, scale=1.0),  # no token
    Span(start=7, stop=8, row=32, rank=1, scale=0.5),  # one token
    Span(start=20, stop=61, row=16, rank=13, scale=3.0),  # tokens 8 to 20 are the base's alone
)


def _case(group: Group, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    x, w, bias, arena = (
        torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)
        for shape in ((T, K), (group.width, K), (group.width,), (ROWS, COLUMNS))
    )
    owned = {row for span in SPANS for row in range(span.row, span.row + span.rank)}
    arena[[row for row in range(ROWS) if row not in owned]] = float("nan")
    return x, w, bias, arena


def _dense(x: Tensor, w: Tensor, bias: Tensor, arena: Tensor, group: Group, spans: Sequence[Span]) -> Tensor:
    """The definition, adapter by adapter and matrix by matrix."""
    y = x @ w.t() + bias
    parts = []
    for place, part in enumerate(group.parts):
        out = y[:, part.y : part.y + part.width]
        for span in spans:
            rows = arena[span.row : span.row + span.rank]
            a = rows[:, group.a + place * group.pitch :][:, : group.in_features]
            b = rows[:, part.b : part.b + part.width].t()
            added = span.scale * (x[span.start : span.stop] @ a.t()) @ b.t()
            out = torch.cat([out[: span.start], out[span.start : span.stop] + added, out[span.stop :]])
        parts.append(out)
    return torch.cat(parts, 1)


@pytest.mark.parametrize("name", GROUPS)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 2e-5)])
def test_outputs_and_every_gradient_equal_the_definition(name: str, dtype: torch.dtype, tolerance: float) -> None:
    group = GROUPS[name]
    x, w, bias, arena = _case(group, dtype)
    residual = torch.randn(T, group.width, dtype=dtype)
    grad = torch.ones_like(arena)
    leaves = [t.double().clone().requires_grad_() for t in (x, residual, arena)]
    theirs = _dense(leaves[0], w.double(), bias.double(), leaves[2], group, SPANS) + leaves[1]
    mine = [t.clone().requires_grad_() for t in (x, residual)]
    adapters = Adapters(arena, grad, SPANS, torch.zeros((), dtype=dtype, requires_grad=True))
    ours = grouped_linear(mine[0], w, bias, adapters, group, residual_TN=mine[1])
    torch.testing.assert_close(ours.double(), theirs, rtol=tolerance, atol=tolerance * 10)
    upstream = torch.randn_like(ours)
    ours.backward(upstream)
    theirs.backward(upstream.double())
    for own, leaf in zip(mine, leaves, strict=False):
        assert own.grad is not None
        torch.testing.assert_close(own.grad.double(), leaf.grad, rtol=tolerance, atol=tolerance * 100)
    torch.testing.assert_close(grad.double() - 1, leaves[2].grad, rtol=tolerance, atol=tolerance * 100)


def test_tokens_of_nobody_get_the_base_and_rows_of_nobody_get_nothing() -> None:
    group = GROUPS["three"]
    x, _, _, arena = _case(group, torch.float64)
    grad = torch.zeros_like(arena)
    y = torch.zeros(T, group.width, dtype=torch.float64)
    saved = reference.forward_(y, x, arena, group, SPANS)
    assert not y[8:20].any()
    assert y[:8].all()
    reference.backward_(grad, None, torch.ones_like(y), x, saved, arena, group, SPANS)
    assert torch.equal(grad.any(1).nonzero()[:, 0], torch.tensor([*range(8, 16), *range(16, 29), 32]))
    columns = torch.zeros(COLUMNS, dtype=torch.bool)
    for place, part in enumerate(group.parts):
        columns[group.a + place * group.pitch :][:K] = True
        columns[part.b : part.b + part.width] = True
    assert not grad[:, ~columns].any()


def test_a_broken_adapter_breaks_its_own_tokens_alone() -> None:
    group = GROUPS["three"]
    x, w, bias, arena = _case(group, torch.float32)
    broken_arena = arena.clone()
    broken_arena[8:16] = float("nan")
    results = []
    for weights in (arena, broken_arena):
        grad, own = torch.zeros_like(arena), x.clone().requires_grad_()
        y = grouped_linear(own, w, bias, Adapters(weights, grad, SPANS, torch.zeros((), requires_grad=True)), group)
        y.backward(torch.ones_like(y))
        results.append((y.detach(), own.grad, grad))
    (y, dx, grad), (broken_y, broken_dx, broken_grad) = results
    assert dx is not None
    assert broken_dx is not None
    assert broken_y[:7].isnan().all()
    assert torch.equal(broken_y[7:], y[7:])
    assert torch.equal(broken_dx[7:], dx[7:])
    assert torch.equal(broken_grad[16:], grad[16:])


def test_gradients_of_several_passes_add_up_in_order_to_the_same_bits() -> None:
    group = GROUPS["one"]
    x, w, bias, arena = _case(group, torch.float32)
    totals = []
    for _ in range(2):
        grad = torch.zeros_like(arena)
        for part in (x, x.flip(0), 2 * x):
            adapters = Adapters(arena, grad, SPANS, torch.zeros((), requires_grad=True))
            grouped_linear(part, w, bias, adapters, group).square().sum().backward()
        totals.append(grad)
    assert totals[0].any()
    assert torch.equal(*totals)


def test_weights_of_lower_precision_work_beside_float32_gradients() -> None:
    group = GROUPS["three"]
    x, w, bias, arena = _case(group, torch.float32)
    exact, low = torch.zeros_like(arena), torch.zeros_like(arena)
    grouped_linear(x, w, bias, Adapters(arena, exact, SPANS, torch.zeros((), requires_grad=True)), group).sum().backward()
    half_x, half_w, half_bias = (t.bfloat16() for t in (x, w, bias))
    grouped_linear(
        half_x, half_w, half_bias, Adapters(arena, low, SPANS, torch.zeros((), requires_grad=True)), group
    ).sum().backward()
    assert low.dtype == torch.float32
    torch.testing.assert_close(low, exact, rtol=0.05, atol=0.05 * float(exact.abs().max()))


def test_misuse_is_refused() -> None:
    group = GROUPS["one"]
    x, w, bias, arena = _case(group, torch.float32)
    anchor = torch.zeros((), requires_grad=True)
    with pytest.raises(ValueError, match=r"do not fit a group of 20 -> 33"):
        grouped_linear(x[:, :19], w, bias, Adapters(arena, None, SPANS, anchor), group)
    with pytest.raises(RuntimeError, match="no gradient buffer"):
        grouped_linear(x, w, bias, Adapters(arena, None, SPANS, anchor), group).sum().backward()
    with pytest.raises(ValueError, match="not a range of tokens"):
        Span(3, 2, 0, 1, 1.0)
    with pytest.raises(ValueError, match="rank 0"):
        Span(0, 2, 0, 0, 1.0)
