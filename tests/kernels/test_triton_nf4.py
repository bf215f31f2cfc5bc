"""The kernel that decodes NF4 against plain PyTorch, to the last bit: odd counts, short blocks, both kinds of scales."""

import pytest
import torch
from grouped_lora.base.nf4 import LEVELS, Nf4Weight, dynamic_map, quantise
from grouped_lora.base.nf4_decode import decode_nf4

from tests.kernels.triton_case import DEVICE, DTYPES


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("shape", [(64, 64), (37, 45), (131, 260), (1, 3)])
def test_the_kernel_writes_the_bits_of_plain_pytorch(shape: tuple[int, int], double: bool, dtype: torch.dtype) -> None:
    weight = torch.randn(shape) * torch.randn(shape[0], 1)
    plain = quantise(weight, double)
    want = Nf4Weight((plain,), dtype).dense()
    scales = plain.scales
    room = torch.full((weight.numel() + 8,), float("nan"), dtype=dtype, device=DEVICE)
    decode_nf4(
        plain.codes.to(DEVICE),
        scales.values.to(DEVICE),
        None if scales.outer is None else scales.outer.to(DEVICE),
        None if scales.mean is None else scales.mean.to(DEVICE),
        torch.tensor(LEVELS, device=DEVICE),
        dynamic_map(torch.device(DEVICE)),
        room[: weight.numel()],
    )
    assert torch.equal(room[: weight.numel()].cpu().view(shape), want)
    assert room[weight.numel() :].isnan().all(), "nothing is written behind the matrix"


def test_a_matrix_with_strides_is_refused() -> None:
    plain = quantise(torch.randn(4, 6))
    with pytest.raises(ValueError, match="contiguous"):
        decode_nf4(plain.codes, plain.scales.values, None, None, *[torch.zeros(1)] * 2, torch.zeros(6, 4).t())
