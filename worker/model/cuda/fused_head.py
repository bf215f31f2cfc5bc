"""The LM head and its loss on CUDA: label tokens only, in chunks; the forward forms the gradient of their hidden states.

No gradient of the head, no fp32 logits; one chunk of bf16 logits exists at a time. Losses stay on the device. Knows no layers.
"""

from dataclasses import dataclass

import torch
from grouped_lora.block.cross_entropy import cross_entropy, span_sums
from torch import Tensor

CHUNK_LABELS = 2048  # bf16 logits of one chunk at a 128k vocabulary: 525 MB


@dataclass(frozen=True)
class Labels:
    """indices int [L labels]: the place on the token axis that each label is predicted from; T for padding. tokens int [L].
    loss_weights fp32 [L]: each label's factor of -log p in the gradient (0 for padding). bounds int32 [segments + 1]: each
    segment's labels."""

    indices: Tensor
    tokens: Tensor
    loss_weights: Tensor
    bounds: Tensor


def head_loss(
    h: Tensor, head: Tensor, labels: Labels, with_gradient: bool, cap: float | None = None, out: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """(sums, hits, dh): sums [segments] fp32 of log-probabilities; hits [segments] fp32, how many labels are their logits'
    argmax; dh [T, D] of Σ -loss_weight · logp, or None.

    h [T, D] final hidden states, head [V, D]. cap: the logits' soft cap; None: they have none. out [T + 1, D]: where dh is
    written, if not to memory of its own.
    """
    count, tokens = labels.indices.shape[0], h.shape[0]
    logp, hits = torch.empty((2, count), dtype=torch.float32, device=h.device)
    # One row more than there are tokens takes what padding labels write.
    dh = None
    if with_gradient:
        dh = out.zero_() if out is not None else torch.zeros((tokens + 1, h.shape[1]), dtype=h.dtype, device=h.device)
    indices = labels.indices.long()
    picked = h.index_select(0, indices.clamp(max=tokens - 1))
    for start in range(0, count, CHUNK_LABELS):
        part = slice(start, min(start + CHUNK_LABELS, count))
        logits = torch.mm(picked[part], head.t())
        loss_weights = labels.loss_weights[part] if with_gradient else None
        cross_entropy(logits, labels.tokens[part], loss_weights, logp[part], hits[part], cap)
        if dh is not None:  # then `logits` hold their gradient
            dh.index_copy_(0, indices[part], torch.mm(logits, head))
    sums, found = span_sums(logp, labels.bounds), span_sums(hits, labels.bounds)
    return sums, found, dh[:tokens] if dh is not None else None
