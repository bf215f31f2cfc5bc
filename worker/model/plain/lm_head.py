"""The language-model head on label tokens only, in chunks. Knows no jobs: it gives a loss and a hit per label.

SFT forms the hidden states' gradient in the forward, so the logits of a chunk live once and no weight gradient exists.
"""

from itertools import pairwise
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from grouped_lora.base.frozen_product import product, whole_rows
from torch import Tensor

CHUNK_BYTES = 32 * 2**20  # of one chunk's logits


class LabelLoss(NamedTuple):
    """nll_L: -log p of each label, at least float32. hits_L, of the same type: 1 where the label is its logits' argmax, else 0.
    dh_LK: the hidden states' gradient times its label's weight, or None."""

    nll_L: Tensor
    hits_L: Tensor
    dh_LK: Tensor | None


def label_loss(
    h_LK: Tensor, head_VK: Tensor, labels_L: Tensor, loss_weights_L: Tensor | None, cap: float | None = None
) -> LabelLoss:
    """-log softmax(h head^T) at the labels. With `loss_weights_L` also d(sum of their products) / dh. cap: see `softcapped`."""
    count = h_LK.shape[0]
    peaks = torch.empty(2, count, dtype=_wide(h_LK.dtype), device=h_LK.device)
    hits_L = torch.empty_like(peaks[0])
    dh_LK = torch.empty_like(h_LK) if loss_weights_L is not None else None
    for start, stop in _chunks(count, head_VK.shape[0] * peaks.element_size()):
        h = h_LK[start:stop]
        labels = labels_L[start:stop]
        h = F.pad(h, (0, 0, 0, whole_rows(stop - start) - (stop - start)))
        logits = softcapped(product(h, head_VK.t()).to(peaks.dtype), cap)
        own = logits[: stop - start].gather(1, labels[:, None])[:, 0]
        torch.sub(logits[: stop - start].amax(1), own, out=peaks[0, start:stop])
        torch.eq(peaks[0, start:stop], 0, out=hits_L[start:stop])
        if h.dtype != peaks.dtype:
            # Rounded logits tie often, and the argmax is the lowest column. Wide ones tie where rows of the head are equal;
            # torch.argmax would take as long as softmax there, on a CPU.
            hits_L[start:stop].mul_(logits[: stop - start].argmax(1) == labels)
        p = torch.softmax(logits, 1)
        peaks[1, start:stop] = p[: stop - start].amax(1)
        if dh_LK is not None and loss_weights_L is not None:
            p[torch.arange(stop - start, device=p.device), labels] -= 1
            if cap is not None:
                p.sub_((logits / cap).square_().mul_(p))  # the slope is 1 - tanh^2
            dh = product(p.to(h.dtype), head_VK)[: stop - start]
            torch.mul(dh, loss_weights_L[start:stop, None].to(dh.dtype), out=dh_LK[start:stop])
    # log sum exp = largest logit - log of its probability; the largest probability is at least 1 / V, so its log is exact.
    return LabelLoss(peaks[0] - peaks[1].double().log().to(peaks.dtype), hits_L, dh_LK)


class _GivenGradient(torch.autograd.Function):
    """A scalar whose gradient with respect to h is dh."""

    @staticmethod
    def forward(ctx: Any, h: Tensor, dh: Tensor) -> Tensor:
        ctx.dh = dh
        return h.new_zeros(())

    @staticmethod
    def backward(ctx: Any, _: Tensor) -> tuple[Tensor, None]:
        return ctx.dh, None


def backward_from(h_LK: Tensor, dh_LK: Tensor | None) -> None:
    """`h_LK.backward(dh_LK)`. That call imports sympy to compare the two shapes: 0.3 s of CPU time in each process."""
    _GivenGradient.apply(h_LK, dh_LK).backward()


def softcapped(logits_LV: Tensor, cap: float | None) -> Tensor:
    """cap tanh(logits / cap), in place; unchanged without a cap."""
    return logits_LV if cap is None else logits_LV.div_(cap).tanh_().mul_(cap)


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if dtype in (torch.bfloat16, torch.float16) else dtype


def _chunks(count: int, row_bytes: int) -> list[tuple[int, int]]:
    """Cut `count` rows into even chunks within CHUNK_BYTES."""
    chunks = max(1, -(-count * row_bytes // CHUNK_BYTES))
    edges = [count * place // chunks for place in range(chunks + 1)]
    return [(start, stop) for start, stop in pairwise(edges) if stop > start]
