"""The 8-bit code of moments in plain PyTorch: the published map, block by block, and back without loss."""

import pytest
import torch
from grouped_lora.optimizer.blockwise_8bit import BLOCK, code_map, decode, encode, encode_again


def dynamic_map(signed: bool) -> torch.Tensor:
    """The 256 values as the paper tells them: decades of evenly spaced cell centres, 0 and 1."""
    values = [0.0, 1.0]
    for decade in range(7):
        edges = torch.linspace(0.1, 1, (2**decade if signed else 2 ** (decade + 1)) + 1, dtype=torch.float64)
        centres = (10.0 ** (decade - 6) * (edges[:-1] + edges[1:]) / 2).tolist()
        values += centres + ([-c for c in centres] if signed else [])
    return torch.tensor(sorted(values))


@pytest.mark.parametrize("signed", [True, False])
def test_the_map_is_the_dynamic_map(signed: bool) -> None:
    torch.testing.assert_close(code_map(signed).sort().values, dynamic_map(signed), rtol=1e-6, atol=0.0)


@pytest.mark.parametrize("signed", [True, False])
def test_codes_are_nearest_within_a_block_and_come_back(signed: bool) -> None:
    generator = torch.Generator().manual_seed(1)
    values = torch.randn(3, 2 * BLOCK + 44, generator=generator) * torch.rand(3, 2 * BLOCK + 44, generator=generator) ** 4
    values[1, :BLOCK] = 0
    values[2, 7] = -9.0  # a block whose largest magnitude is negative
    if not signed:
        values = values.square()
    codes, scales = encode(values, signed)
    assert scales.shape == (3, 3)
    back = decode(codes, scales, signed)
    assert not back[1, :BLOCK].any()
    gaps = dynamic_map(signed).diff().max()
    assert ((back - values).abs() <= gaps * scales.repeat_interleave(BLOCK, 1)[:, : values.shape[1]]).all()


@pytest.mark.parametrize("signed", [True, False])
def test_decoded_values_come_back_with_the_same_bits(signed: bool) -> None:
    values = torch.randn(64, 3 * BLOCK + 44) * torch.logspace(-30, 20, 64)[:, None]  # half of the blocks' largest are negative
    values[1, :BLOCK] = 0
    if not signed:
        values = values.abs()
    back = decode(*encode(values, signed), signed)
    assert torch.equal(decode(*encode_again(back, signed), signed), back)


def test_a_second_moment_that_is_not_zero_never_becomes_zero() -> None:
    values = torch.tensor([[1.0, 1e-12, 0.0]])
    back = decode(*encode(values, False), False)
    assert back[0, 1] > 0
    assert back[0, 2] == 0
