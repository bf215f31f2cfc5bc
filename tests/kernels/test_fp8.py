"""Products in fp8 in plain PyTorch: what codes and scales mean, and how far products are from exact ones."""

import pytest
import torch
from grouped_lora.base.fp8 import Fp8Weight, quantise_rows
from grouped_lora.base.frozen_product import dense, frozen_linear, frozen_linear_backward, whole_rows
from torch import Tensor

from tests.kernels.triton_case import error

STEP = 2**-4  # half of e4m3's relative spacing: the most that a normal code is off


def _normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_a_row_is_its_codes_times_its_scale_to_half_a_step() -> None:
    x = _normal(37, 300) * torch.logspace(-11, 6, 37)[:, None]
    x[3] = 0
    rows = quantise_rows(x)
    back = rows.codes.float() * rows.scales[:, None]
    largest = x.abs().amax(1)
    torch.testing.assert_close(back.abs().amax(1), largest, rtol=1e-6, atol=0)
    least = largest[:, None] / 448 * 2**-10  # half of the smallest subnormal
    assert ((back - x).abs() <= torch.maximum(x.abs() * STEP, least) * (1 + 1e-6)).all()
    assert torch.equal(back[3], torch.zeros(300))


def test_a_rows_nan_stays_in_its_row() -> None:
    x = _normal(3, 32)
    x[1, 5] = float("nan")
    y = frozen_linear(x, Fp8Weight.of([_normal(16, 32, seed=1)]))
    assert y.isnan().any(1).tolist() == [False, True, False]


def test_stacked_weights_are_quantised_one_by_one_and_decode_to_their_codes() -> None:
    parts = [_normal(24, 48), 100 * _normal(16, 48, seed=1)]
    both = Fp8Weight.of(parts)
    assert both.shape == (40, 48)
    assert torch.equal(both.dense(), torch.cat([Fp8Weight.of([part]).dense() for part in parts]))
    assert error(both.dense(), torch.cat(parts)) < 0.03
    assert sum(tensor.nbytes for tensor in both.tensors()) == 40 * 48 + 40 * 4


@pytest.mark.parametrize(("tokens", "inner", "outer"), [(5, 48, 80), (70, 800, 33)])
def test_both_directions_multiply_the_same_weight(tokens: int, inner: int, outer: int) -> None:
    """The only errors are those of the activations' codes, about 0.026 of their norm."""
    weight = Fp8Weight.of([_normal(outer, inner) * torch.logspace(-2, 2, outer)[:, None]])
    x, dy, bias, residual = _normal(tokens, inner), _normal(tokens, outer), _normal(outer), _normal(tokens, outer)
    exact = weight.dense().double()
    y = frozen_linear(x, weight, residual, bias)
    assert error(y - residual - bias, x.double() @ exact.t()) < 0.04
    assert error(frozen_linear_backward(dy, weight), dy.double() @ exact) < 0.04
    rows = quantise_rows(x)
    x_again = rows.codes.double() * rows.scales.double()[:, None]
    assert error(weight.forward(rows), x_again @ exact.t()) < 3e-6
    folded = quantise_rows(dy, weight.scales)
    dy_again = folded.codes.double() * folded.scales.double()[:, None] / weight.scales.double()
    assert error(weight.backward(folded), dy_again @ exact) < 3e-6
    assert dense(weight) is not weight


def test_a_rows_bits_do_not_depend_on_how_many_rows_there_are() -> None:
    weight = Fp8Weight.of([_normal(160, 800)])
    few, many = whole_rows(3), whole_rows(3) * 4
    x = _normal(many, 800)
    assert torch.equal(frozen_linear(x, weight)[:few], frozen_linear(x[:few], weight))
