"""The attention kernel against float64, sequence by sequence: ugly lengths, grouped heads, windows, caps, NaN neighbours, equal
bits; adapters' part of the incoming gradient."""

from itertools import pairwise

import pytest
import torch
from grouped_lora.adapter_spans import Span
from grouped_lora.block.packed_attention import attention
from grouped_lora.block.packed_attention_backward import AdapterInputGradient, attention_backward
from grouped_lora.block.sequence_table import SequenceTable, sequence_blocks
from grouped_lora.launch_configs import LARGE_HEAD

from tests.kernels.triton_case import DEVICE, DTYPES, Case, close

SIZE, SCALE = 40, 0.2


def table(bounds: list[int], capacity: int | None = None) -> SequenceTable:
    return SequenceTable(torch.from_numpy(sequence_blocks(bounds, capacity)).to(DEVICE))


def truth(qkv: torch.Tensor, heads: tuple[int, int], window: int | None, cap: float | None) -> torch.Tensor:
    """One sequence's attention in plain PyTorch: [t, Hq D]."""
    hq, hkv = heads
    q, k, v = qkv.unflatten(1, (hq + 2 * hkv, -1)).split([hq, hkv, hkv], 1)
    k, v = (z.repeat_interleave(hq // hkv, 1) for z in (k, v))
    s = torch.einsum("qhd,khd->hqk", q, k) * SCALE
    s = s if cap is None else cap * (s / cap).tanh()
    behind = torch.arange(qkv.shape[0], device=DEVICE)[:, None] - torch.arange(qkv.shape[0], device=DEVICE)[None]
    s = s.masked_fill((behind < 0) | (behind >= (window or 1 << 30)), float("-inf"))
    return torch.einsum("hqk,khd->qhd", s.softmax(2), v).flatten(1)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("heads", "size", "window", "cap"), [((2, 1), SIZE, None, None), ((2, 2), SIZE, 40, None), ((2, 1), 136, 66, 2.5)]
)
def test_attention_and_its_gradient(
    dtype: torch.dtype, heads: tuple[int, int], size: int, window: int | None, cap: float | None
) -> None:
    if size > LARGE_HEAD and dtype == torch.float32 and DEVICE == "cuda":
        pytest.skip("NOT RUN: heads of 256 in fp32 are interpreted alone: they exceed a GPU's shared memory")
    bounds = [0, 1, 1, 18, 18 + 129]
    generator = torch.Generator().manual_seed(4)
    wide = (heads[0] + 2 * heads[1]) * size
    qkv = torch.randn(bounds[-1] + 3, wide, generator=generator).to(DEVICE, dtype)
    dout = torch.randn(bounds[-1] + 3, heads[0] * size, generator=generator).to(DEVICE, dtype)
    qkv[bounds[-1] :] = float("nan")
    out, lse = attention(qkv, table(bounds, 8), heads, SCALE, window, cap)
    dqkv = attention_backward(dout, qkv, out, lse, table(bounds, 8), heads, SCALE, window, cap=cap)
    for start, stop in pairwise(bounds):
        part = slice(start, stop)

        def plain(kind: torch.dtype, part: slice = part) -> tuple[torch.Tensor, torch.Tensor]:
            leaf = qkv[part].to(kind).requires_grad_()
            result = truth(leaf, heads, window, cap)
            result.backward(dout[part].to(kind))
            assert leaf.grad is not None
            return result.detach(), leaf.grad

        close(out[part], lambda kind: plain(kind)[0], dtype)
        if stop - start > 1:
            close(dqkv[part], lambda kind: plain(kind)[1], dtype)


def test_a_sequence_has_the_same_bits_alone_and_among_nan() -> None:
    generator = torch.Generator().manual_seed(5)
    qkv = torch.randn(100, 4 * SIZE, generator=generator).to(DEVICE, torch.bfloat16)
    dout = torch.randn(100, 2 * SIZE, generator=generator).to(DEVICE, torch.bfloat16)
    poisoned = torch.full((160, 4 * SIZE), float("nan"), dtype=torch.bfloat16, device=DEVICE)
    poisoned[50:150] = qkv
    d_poisoned = torch.full((160, 2 * SIZE), float("nan"), dtype=torch.bfloat16, device=DEVICE)
    d_poisoned[50:150] = dout
    results = []
    for x, dx, bounds, at in ((qkv, dout, [0, 100], 0), (poisoned, d_poisoned, [0, 50, 150, 160], 50)):
        out, lse = attention(x, table(bounds), (2, 1), SCALE)
        results.append((out[at : at + 100], attention_backward(dx, x, out, lse, table(bounds), (2, 1), SCALE)[at : at + 100]))
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("size", "dropout"), [(SIZE, 0.0), (SIZE, 0.25), (136, 0.25)])  # the last is joined by two parts
def test_adapters_join_the_gradient_that_comes_in(dtype: torch.dtype, size: int, dropout: float) -> None:
    if size > LARGE_HEAD and dtype == torch.float32 and DEVICE == "cuda":
        pytest.skip("NOT RUN: heads of 256 in fp32 are interpreted alone: they exceed a GPU's shared memory")
    case = Case((17, 0, 1, 129, 30), width=2 * size + 9, dtype=dtype, tail=21, dropout=dropout)
    bounds = [0, 5, 17, 18, 18 + 129, case.total - 21, case.total]  # the first adapter has two sequences
    sequences = SequenceTable(torch.from_numpy(sequence_blocks(bounds, 12, case.table.spans.cpu().numpy())).to(DEVICE))
    qkv, dout, ds = case.tokens(4 * size), case.tokens(2 * size), case.shrunk(1)
    out, lse = attention(qkv, sequences, (2, 1), SCALE)
    joined = dout.clone()
    dqkv = attention_backward(
        joined, qkv, out, lse, sequences, (2, 1), SCALE, incoming=AdapterInputGradient(ds, case.weights, 4, case.table, 9)
    )
    for span in case.spans:
        part = slice(span.start, span.stop)

        def plain(kind: torch.dtype, span: Span = span, part: slice = part) -> torch.Tensor:
            product = ds[part, 0, : span.rank].to(kind) @ case.rows(span)[:, 4 : 4 + 2 * size].to(kind)
            return dout[part].to(kind) + product * case.seen(span, 9, 2 * size, kind)

        close(joined[part], plain, dtype)
    assert torch.equal(joined[-21:], dout[-21:])
    assert torch.equal(dqkv, attention_backward(joined, qkv, out, lse, sequences, (2, 1), SCALE))
