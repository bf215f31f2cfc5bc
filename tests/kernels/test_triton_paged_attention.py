"""Paged attention against float64: pages out of order, page boundaries, windows, grouped heads, NaN in all that is not read."""

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
@pytest.mark.parametrize(("heads", "window"), [((4, 2), None), ((6, 1), PAGE), ((2, 2), 21), ((34, 2), None)])
def test_each_sequence_attends_to_its_own_pages(dtype: torch.dtype, heads: tuple[int, int], window: int | None) -> None:
    qkv, keys, values, tables, lengths = cached(dtype, heads)
    out = paged_attention(qkv, keys, values, tables, lengths, heads, SCALE, window)
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
            return (torch.softmax(q @ k.transpose(1, 2) * SCALE, -1) @ v).flatten()

        close(out[row], plain, dtype)
        alone = paged_attention(
            qkv[row : row + 1], keys, values, tables[row : row + 1], lengths[row : row + 1], heads, SCALE, window
        )
        assert torch.equal(alone[0], out[row])
