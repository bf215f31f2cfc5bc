"""The plain attention against one written out over each whole sequence, where windows and blocks of queries end."""

from itertools import pairwise

import pytest
import torch

from worker.model.plain.attention import BLOCK, Axis, Heads, attend, causal_mask

QUERY, KEY, SIZE, SCALE = 4, 2, 8, 0.3
LENGTHS = (1, 5, 6, 45, BLOCK, BLOCK + 45)  # a window of 5 or 44 and its next token; whole blocks, and beyond
TAIL = 3


def written_out(qkv: torch.Tensor, window: int | None, cap: float | None) -> torch.Tensor:
    q, k, v = qkv.view(len(qkv), -1, SIZE).transpose(0, 1).split([QUERY, KEY, KEY])
    k, v = (each.repeat_interleave(QUERY // KEY, 0) for each in (k, v))
    scores = q @ k.transpose(1, 2) * SCALE
    scores = scores if cap is None else cap * (scores / cap).tanh()
    behind = torch.arange(len(qkv))[:, None] - torch.arange(len(qkv))
    hidden = (behind < 0) | (behind >= (len(qkv) if window is None else window))
    return (scores.masked_fill(hidden, -torch.inf).softmax(2) @ v).transpose(0, 1).flatten(1)


@pytest.mark.parametrize("window", [None, 5, 44, BLOCK + 44])
@pytest.mark.parametrize("cap", [None, 2.0])
def test_each_sequence_attends_within_its_window(window: int | None, cap: float | None) -> None:
    bounds = [0]
    for length in LENGTHS:
        bounds.append(bounds[-1] + length)
    generator = torch.Generator().manual_seed(1)
    qkv = torch.randn(bounds[-1] + TAIL, (QUERY + 2 * KEY) * SIZE, dtype=torch.float64, generator=generator)
    dy = torch.randn(len(qkv), QUERY * SIZE, dtype=torch.float64, generator=generator)
    cos = torch.ones(len(qkv), 1, SIZE // 2, dtype=torch.float64)
    axis = Axis(tuple(bounds), cos, torch.zeros_like(cos), causal_mask(max(LENGTHS), qkv))
    leaf, plain = qkv.clone().requires_grad_(), qkv.clone().requires_grad_()
    out = attend(leaf, axis, Heads(QUERY, KEY, SIZE, 0.0, None, window, SCALE, cap))
    out.backward(dy)
    wanted = torch.cat([written_out(plain[start:stop], window, cap) for start, stop in pairwise(bounds)])
    wanted.backward(dy[: bounds[-1]])
    torch.testing.assert_close(out[: bounds[-1]], wanted, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(leaf.grad, plain.grad, rtol=1e-11, atol=1e-11)
    assert not out[bounds[-1] :].any()
