"""The kernels that quantise to e4m3, against plain PyTorch on ugly shapes; the product on a GPU."""

import pytest
import torch
from grouped_lora.base.fp8 import CAPABILITY, Fp8Weight, quantise_rows
from grouped_lora.base.fp8_quantise import QuantisedRows, quantise_on_device, transposed
from torch import Tensor

from tests.kernels.triton_case import DEVICE, DTYPES, error

E4M3 = pytest.mark.skipif(
    DEVICE == "cuda" and torch.cuda.get_device_capability() < CAPABILITY, reason="this GPU's compiler has no e4m3"
)
pytestmark = E4M3


def _plain(x: Tensor, factor: Tensor | None = None) -> QuantisedRows:
    """On the host, in fp32."""
    return quantise_rows(x.cpu().float(), None if factor is None else factor.cpu())


def _same(got: QuantisedRows, want: QuantisedRows) -> None:
    """To the last bit."""
    assert torch.equal(got.scales.cpu(), want.scales)
    assert torch.equal(got.codes.cpu().view(torch.uint8) & 0x7F, want.codes.view(torch.uint8) & 0x7F)  # -0 may be 0
    assert torch.equal(got.codes.cpu().float(), want.codes.float())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 16), (7, 300), (33, 1025)])
@pytest.mark.parametrize("with_factor", [False, True])
def test_rows_become_the_codes_of_plain_pytorch(shape: tuple[int, int], with_factor: bool, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(shape[1])
    x = (torch.randn(shape, generator=generator) * torch.logspace(-4, 4, shape[0])[:, None]).to(DEVICE, dtype)
    x[0, : shape[1] // 2] = 0
    factor = torch.rand(shape[1], generator=generator).to(DEVICE) if with_factor else None
    _same(quantise_on_device(x, factor), _plain(x, factor))
    wide = torch.full((shape[0], shape[1] + 3), float("nan"), dtype=dtype, device=DEVICE)
    wide[:, : shape[1]] = x
    _same(quantise_on_device(wide[:, : shape[1]], factor), _plain(x, factor))


def test_a_row_of_zeros_and_a_row_with_a_nan() -> None:
    x = torch.zeros(3, 40, device=DEVICE)
    x[1, 7], x[2, 1] = float("nan"), 1
    rows = quantise_on_device(x)
    assert (rows.codes.float() * rows.scales[:, None]).isnan().any(1).tolist() == [False, True, False]
    assert rows.codes[0].float().abs().max() == 0
    assert rows.scales[0] > 0


@pytest.mark.parametrize("shape", [(16, 16), (130, 300)])
def test_transposed_codes(shape: tuple[int, int]) -> None:
    codes = torch.randint(0, 255, shape, dtype=torch.uint8, device=DEVICE).view(torch.float8_e4m3fn)
    got = transposed(codes)
    assert got.is_contiguous()
    assert torch.equal(got.view(torch.uint8), codes.view(torch.uint8).t())


@pytest.mark.skipif(DEVICE == "cpu", reason="the matrix unit's own product")
@pytest.mark.parametrize(("tokens", "inner", "outer"), [(1, 32, 48), (70, 416, 96), (300, 2048, 3072)])
def test_products_on_the_device_are_those_emulated(tokens: int, inner: int, outer: int) -> None:
    generator = torch.Generator().manual_seed(tokens)
    parts = [(torch.randn(outer, inner, generator=generator) * inner**-0.5).bfloat16()]
    x, dy = (torch.randn(tokens, width, generator=generator).bfloat16() for width in (inner, outer))
    bias = torch.randn(outer, generator=generator).bfloat16()
    there, here = Fp8Weight.of([part.cuda() for part in parts]), Fp8Weight.of([part.double() for part in parts])
    _same(QuantisedRows(there.codes, there.scales), QuantisedRows(here.codes, here.scales))
    here = Fp8Weight(there.codes.cpu(), there.scales.cpu(), torch.float64)
    rows, folded = quantise_rows(x.cuda()), quantise_rows(dy.cuda(), there.scales)
    on_host = [QuantisedRows(made.codes.cpu(), made.scales.cpu()) for made in (rows, folded)]
    # One rounding to bf16, and what the matrix unit's accumulator drops.
    assert error(there.forward(rows, bias.cuda()).cpu(), here.forward(on_host[0], bias.double())) < 4e-3
    assert error(there.backward(folded).cpu(), here.backward(on_host[1])) < 4e-3
