"""The 8-bit codes that the optimizer's kernel computes beside those of plain PyTorch, over all decades.

Runs under Triton's interpreter on the CPU, and compiled where there is a CUDA device.
"""

import pytest
import torch
import triton
import triton.language as tl
from grouped_lora.optimizer.adamw import _decode, _encode
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


@pytest.mark.parametrize("signed", [True, False])
def test_codes_are_those_of_plain_pytorch_but_next_to_an_edge(signed: bool) -> None:
    generator = torch.Generator().manual_seed(4)
    x = 10 ** (-8 * torch.rand(COUNT, generator=generator))
    x[::BLOCK] = 1.0  # so that plain PyTorch divides by 1
    x[1::BLOCK] = 1e-30
    x[2::BLOCK] = 0.0
    x[3::BLOCK] = 0.999
    if signed:
        x *= torch.where(torch.rand(COUNT, generator=generator) < 0.5, -1.0, 1.0)
        x[::BLOCK], x[3::BLOCK] = 1.0, -1.0
    codes, values = coded(x, signed)
    plain = encode(x.view(-1, BLOCK), signed)[0].flatten()
    assert (codes != plain).float().mean() < 2e-3
    truth = code_map(signed)[plain.long()]
    assert (values - x).abs().sum() <= 1.005 * (truth - x).abs().sum()
    assert torch.equal(codes[3::BLOCK], plain[3::BLOCK])
    assert torch.equal(values[2::BLOCK], torch.zeros(COUNT // BLOCK))
    assert signed or (values[1::BLOCK] > 0).all(), "a second moment that is not zero never becomes zero"
