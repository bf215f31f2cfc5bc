"""Each building block gives a row the same bits whatever else lies on the axis, at sizes where the plain call does not."""

from itertools import pairwise

import pytest
import torch
from grouped_lora.base.frozen_product import product, whole_rows
from torch import Tensor

from worker.model.flat_batch import ACTIVATION_ROWS
from worker.model.plain.attention import BLOCK, Axis, Heads, attend, causal_mask
from worker.model.plain.gated_mlp import ACTIVATIONS, RowRanges, gated
from worker.model.plain.lm_head import label_loss
from worker.model.plain.rms_norm import rms_norm

RANGES = ((0, 3), (3, 403), (403, 460), (460, 1460))  # jobs' tokens on the axis
BOTH = pytest.mark.parametrize("threads", [1, 2], indirect=True)


def _ranges(start: int, stop: int, base: int) -> RowRanges:
    return tuple((at - base, min(at + ACTIVATION_ROWS, stop) - base) for at in range(start, stop, ACTIVATION_ROWS))


def _packed_ranges() -> RowRanges:
    return tuple(rows for start, stop in RANGES for rows in _ranges(start, stop, 0))


@BOTH
@pytest.mark.parametrize("inner", [77, 512, 768, 864, 1536, 2048])
def test_a_row_of_a_frozen_product(threads: int, inner: int) -> None:
    torch.manual_seed(0)
    x, w_NK, w_KN = torch.randn(1440, inner), torch.randn(288, inner), torch.randn(inner, 100)
    for weight in (w_NK.t(), w_KN):
        whole = product(x, weight)
        torch.testing.assert_close(whole, x @ weight, rtol=1e-4, atol=1e-4 * inner**0.5)
        counts = sorted({whole_rows(rows) for rows in range(1, len(x), 47)})
        parts = [(first, count) for count in counts for first in (0, 5, 48) if first + count <= len(x)]
        other = {n for first, n in parts if not torch.equal(product(x[first : first + n], weight), whole[first : first + n])}
        assert not other


def test_a_product_starts_from_residual_and_bias() -> None:
    torch.manual_seed(0)
    x, w, residual, bias = torch.randn(40, 864), torch.randn(864, 30), torch.randn(40, 30), torch.randn(30)
    torch.testing.assert_close(product(x, w, residual, bias), x @ w + residual + bias, rtol=1e-4, atol=1e-3)
    torch.testing.assert_close(product(x, w, None, bias), x @ w + bias, rtol=1e-4, atol=1e-3)


@BOTH
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("width", [33, 259, 768])
def test_a_job_of_a_gated_product_and_its_gradient(threads: int, width: int, activation: str) -> None:
    torch.manual_seed(0)
    gate_up = torch.randn(1460, 2 * width, requires_grad=True)
    upstream = torch.randn(1460, width)
    packed = gated(gate_up, _packed_ranges(), activation)
    (gradient,) = torch.autograd.grad(packed, gate_up, upstream)
    for start, stop in RANGES:
        own = gate_up[start:stop].detach().clone().requires_grad_()
        solo = gated(own, _ranges(start, stop, start), activation)
        assert torch.equal(solo, packed[start:stop])
        assert torch.equal(torch.autograd.grad(solo, own, upstream[start:stop])[0], gradient[start:stop])


@BOTH
def test_a_job_of_rms_norm_and_its_gradient(threads: int) -> None:
    torch.manual_seed(0)
    x, weight, upstream = torch.randn(1460, 259, requires_grad=True), torch.randn(259), torch.randn(1460, 259)
    packed = rms_norm(x, weight, 1e-6)
    (gradient,) = torch.autograd.grad(packed, x, upstream)
    for start, stop in RANGES:
        own = x[start:stop].detach().clone().requires_grad_()
        solo = rms_norm(own, weight, 1e-6)
        assert torch.equal(solo, packed[start:stop])
        assert torch.equal(torch.autograd.grad(solo, own, upstream[start:stop])[0], gradient[start:stop])


def _axis(bounds: tuple[int, ...], angles: Tensor) -> Axis:
    longest = max(stop - start for start, stop in pairwise(bounds))
    places = torch.cat([torch.arange(stop - start) for start, stop in pairwise(bounds)])
    mine = angles[places][:, None]
    return Axis(bounds, mine.cos(), mine.sin(), causal_mask(longest, angles))


@BOTH
@pytest.mark.parametrize(("window", "cap"), [(None, None), (7, 2.0), (BLOCK + 40, None), (None, 1.5)])
def test_a_sequence_of_attention_and_its_gradient(threads: int, window: int | None, cap: float | None) -> None:
    torch.manual_seed(0)
    norm_SD = torch.rand(8, 18) + 0.5
    heads = Heads(query=6, key=2, size=18, eps=1e-6, norm_SD=norm_SD, window=window, scale=0.2, cap=cap)
    bounds = (0, 1, 13, 13 + BLOCK, 14 + 2 * BLOCK, 14 + 2 * BLOCK + 600)
    angles = torch.rand(600, 9)
    qkv, upstream = torch.randn(bounds[-1], 10 * 18, requires_grad=True), torch.randn(bounds[-1], 6 * 18)
    packed = attend(qkv, _axis(bounds, angles), heads)
    (gradient,) = torch.autograd.grad(packed, qkv, upstream)
    for start, stop in pairwise(bounds):
        own = qkv[start:stop].detach().clone().requires_grad_()
        solo = attend(own, _axis((0, stop - start), angles), heads)
        assert torch.equal(solo, packed[start:stop])
        assert torch.equal(torch.autograd.grad(solo, own, upstream[start:stop])[0], gradient[start:stop])


@pytest.mark.parametrize(("window", "cap"), [(None, None), (7, None), (BLOCK + 40, 1.5)])
def test_attention_of_many_blocks_equals_the_definition(window: int | None, cap: float | None) -> None:
    torch.manual_seed(0)
    length = 2 * BLOCK + 88
    heads = Heads(query=4, key=2, size=6, eps=1e-6, norm_SD=None, window=window, scale=0.7, cap=cap)
    qkv = torch.randn(length, 8 * 6, dtype=torch.float64, requires_grad=True)
    ours = attend(qkv, _axis((0, length), torch.zeros(length, 3, dtype=torch.float64)), heads)
    q, k, v = qkv.view(length, 8, 6).transpose(0, 1).split((4, 2, 2))
    behind = torch.arange(length)[:, None] - torch.arange(length)
    seen = (behind >= 0) & (behind < (window or length))
    scores = 0.7 * q @ k.repeat_interleave(2, 0).transpose(1, 2)
    if cap is not None:
        scores = cap * (scores / cap).tanh()
    scores = scores.masked_fill(~seen, float("-inf"))
    theirs = (scores.softmax(-1) @ v.repeat_interleave(2, 0)).transpose(0, 1).flatten(1)
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)
    upstream = torch.randn_like(ours)
    torch.testing.assert_close(
        torch.autograd.grad(ours, qkv, upstream)[0], torch.autograd.grad(theirs, qkv, upstream)[0], rtol=1e-9, atol=1e-11
    )


@BOTH
@pytest.mark.parametrize(("vocabulary", "cap"), [(515, None), (4099, None), (4099, 2.0)])
def test_a_label_of_the_head_and_its_gradient(threads: int, vocabulary: int, cap: float | None) -> None:
    torch.manual_seed(0)
    h, head, weights = torch.randn(700, 288), torch.randn(vocabulary, 288) / 17, torch.rand(700)
    labels = torch.randint(0, vocabulary, (700,))
    packed = label_loss(h, head, labels, weights, cap)
    assert packed.dh_LK is not None
    for start, stop in ((0, 1), (3, 40), (100, 700)):
        rows = slice(start, stop)
        solo = label_loss(h[rows], head, labels[rows], weights[rows], cap)
        assert solo.dh_LK is not None
        assert torch.equal(solo.nll_L, packed.nll_L[rows])
        assert torch.equal(solo.dh_LK, packed.dh_LK[rows])
