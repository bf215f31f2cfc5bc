"""The 8-bit codes that the optimizer's kernel computes beside those of plain PyTorch, over all decades.

Runs under Triton's interpreter on the CPU, and compiled where there is a CUDA device.
"""

import pytest
import torch
import triton
import triton.language as tl
from grouped_lora.optimizer.adamw import _decode, _encode, _inverse
from grouped_lora.optimizer.blockwise_8bit import BLOCK, code_map, encode

from tests.kernels.triton_case import DEVICE

COUNT = 64 * BLOCK


@triton.jit
def _both(x_ptr, codes_ptr, values_ptr, N: tl.constexpr, SIGNED: tl.constexpr):
    at = tl.arange(0, N)
    code = _encode(tl.load(x_ptr + at), SIGNED)
    tl.store(codes_ptr + at, code.to(tl.uint8))
    tl.store(values_ptr + at, _decode(code, SIGNED))


def coded(x: torch.Tensor, signed: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """(codes, values) of the kernel."""
    codes = torch.zeros(len(x), dtype=torch.uint8, device=DEVICE)
    values = torch.full((len(x),), float("nan"), device=DEVICE)
    _both[(1,)](x.to(DEVICE), codes, values, N=len(x), SIGNED=signed)
    return codes.cpu(), values.cpu()


@pytest.mark.parametrize("signed", [True, False])
def test_every_value_of_the_map_has_its_code_and_back(signed: bool) -> None:
    codes, values = coded(code_map(signed), signed)
    assert torch.equal(codes, torch.arange(256).to(torch.uint8))
    torch.testing.assert_close(values, code_map(signed), rtol=1e-5, atol=0.0)


def test_no_rounding_makes_the_largest_negative_number_zero() -> None:
    below = -torch.tensor([1.0, *(1.0 + step * 2.0**-23 for step in range(1, 8))])
    codes, values = coded(below * 0.999999, True)  # as _inverse scales them
    assert codes.tolist() == [254] * 8
    assert (values < -0.99).all()


@triton.jit
def _scaled(scale_ptr, out_ptr, N: tl.constexpr):
    at = tl.arange(0, N)
    scale = tl.load(scale_ptr + at)
    tl.store(out_ptr + at, scale * _inverse(scale))


def test_a_blocks_extreme_is_at_most_1_by_its_own_scale() -> None:
    generator = torch.Generator().manual_seed(9)
    scale = (1.0 + torch.rand(2**16, generator=generator)) * 2.0 ** torch.randint(-100, 100, (2**16,), generator=generator)
    found = torch.zeros_like(scale).to(DEVICE)
    _scaled[(1,)](scale.to(DEVICE), found, N=2**16)
    assert found.max() <= 1.0
    assert found.min() > 0.99999


@pytest.mark.parametrize("signed", [True, False])
def test_codes_are_those_of_plain_pytorch_but_next_to_an_edge(signed: bool) -> None:
    generator = torch.Generator().manual_seed(4)
    x = 10 ** (-8 * torch.rand(COUNT, generator=generator))
    x[::BLOCK] = 1.0  # so that plain PyTorch divides by 1
    x[1::BLOCK] = 1e-30
    x[2::BLOCK] = 0.0
    x[3::BLOCK] = 0.999
    x[4::BLOCK] = 0.9955 if signed else 0.9975  # nearer to the last value of the map's last decade than to 1
    if signed:
        x *= torch.where(torch.rand(COUNT, generator=generator) < 0.5, -1.0, 1.0)
        x[::BLOCK], x[3::BLOCK] = 1.0, -1.0
    codes, values = coded(x, signed)
    plain = encode(x.view(-1, BLOCK), signed)[0].flatten()
    assert (codes != plain).float().mean() < 2e-3
    truth = code_map(signed)[plain.long()]
    assert (values - x).abs().sum() <= 1.005 * (truth - x).abs().sum()
    assert torch.equal(codes[3::BLOCK], plain[3::BLOCK])
    assert torch.equal(codes[4::BLOCK], plain[4::BLOCK])
    assert torch.equal(values[2::BLOCK], torch.zeros(COUNT // BLOCK))
    assert signed or (values[1::BLOCK] > 0).all(), "a second moment that is not zero never becomes zero"
