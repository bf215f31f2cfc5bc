"""Paged attention against float64: pages out of order, page boundaries, windows, caps, grouped heads, NaN elsewhere."""

import pytest
import torch
from grouped_lora.block.paged_attention import paged_attention

from tests.kernels.triton_case import DEVICE, DTYPES, close

SIZE, SCALE, PAGE = 40, 0.2, 16
LENGTHS = [1, PAGE - 1, PAGE, PAGE + 1, 0, 3 * PAGE + 5]


def cached(dtype: torch.dtype, heads: tuple[int, int]) -> tuple[torch.Tensor, ...]:
    """qkv, keys, values, tables and lengths; pages and tokens of nobody are NaN."""
    generator = torch.Generator().manual_seed(6)
    order = torch.randperm(19, generator=generator)
    keys = torch.full((20, heads[1], PAGE, SIZE), float("nan"))
    values, tables, taken = keys.clone(), torch.zeros(len(LENGTHS), 5, dtype=torch.int32), 0
    for row, length in enumerate(LENGTHS):
        for number in range(-(-length // PAGE)):
            page, own = int(order[taken]), min(PAGE, length - number * PAGE)
            tables[row, number], taken = page, taken + 1
            for buffer in (keys, values):
                buffer[page, :, :own] = torch.randn(heads[1], own, SIZE, generator=generator)
    qkv = torch.randn(len(LENGTHS), (heads[0] + 2 * heads[1]) * SIZE, generator=generator)
    qkv[:, heads[0] * SIZE :] = float("nan")
    return (*(x.to(DEVICE, dtype) for x in (qkv, keys, values)), *(x.to(DEVICE) for x in (tables, torch.tensor(LENGTHS).int())))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("heads", "window", "cap"),
    [
        ((4, 2), None, None),
        ((6, 1), PAGE, None),
        ((2, 2), 22, None),  # of 53 tokens the oldest seen one is the last of its page
        ((34, 2), None, None),
        ((4, 2), None, 0.5),
        ((6, 1), 21, 50.0),
    ],
)
def test_each_sequence_attends_to_its_own_pages(
    dtype: torch.dtype, heads: tuple[int, int], window: int | None, cap: float | None
) -> None:
    qkv, keys, values, tables, lengths = cached(dtype, heads)
    out = paged_attention(qkv, keys, values, tables, lengths, heads, SCALE, window, cap)
    wide = torch.nn.functional.pad(qkv, (0, 24))  # rows of another stride
    moved = paged_attention(wide, keys, values, tables, lengths, heads, SCALE, window, cap)
    assert torch.equal(moved[lengths > 0], out[lengths > 0])
    for row, length in enumerate(LENGTHS):
        if not length:
            continue
        pages, seen = tables[row, : -(-length // PAGE)].long(), slice(max(0, length - (window or length)), length)

        def plain(kind: torch.dtype, row: int = row, pages: torch.Tensor = pages, seen: slice = seen) -> torch.Tensor:
            k, v = (
                z[pages].transpose(0, 1).flatten(1, 2)[:, seen].to(kind).repeat_interleave(heads[0] // heads[1], 0)
                for z in (keys, values)
            )
            q = qkv[row, : heads[0] * SIZE].to(kind).view(heads[0], 1, SIZE)
            scores = q @ k.transpose(1, 2) * SCALE
            return (torch.softmax(scores if cap is None else cap * (scores / cap).tanh(), -1) @ v).flatten()

        close(out[row], plain, dtype)
        alone = paged_attention(
            qkv[row : row + 1], keys, values, tables[row : row + 1], lengths[row : row + 1], heads, SCALE, window, cap
        )
        assert torch.equal(alone[0], out[row])
