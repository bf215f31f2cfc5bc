"""The LM head and its loss on CUDA, of label tokens, in chunks; the forward forms the gradient of their hidden states.

No gradient of the head, no fp32 logits; one chunk of bf16 logits exists at a time. Losses stay on the device. Knows no layers.
"""

import torch
from grouped_lora.block.cross_entropy import cross_entropy, span_sums
from torch import Tensor

from worker.model.cuda.batches.label_batch import Labels

CHUNK_LABELS = 2048  # bf16 logits of one chunk at a 128k vocabulary: 525 MB


def head_loss(
    h: Tensor, head: Tensor, labels: Labels, with_gradient: bool, cap: float | None = None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """(sums, hits, dh): sums [segments] fp32 of log-probabilities; hits [segments] fp32, how many labels are their logits'
    argmax; dh [L, D] of Σ -loss_weight · logp, or None.

    h [L, D]: the final hidden states that the labels are predicted from; head [V, D]. cap: the logits' soft cap; None: they
    have none.
    """
    count = labels.tokens.shape[0]
    logp, hits = torch.empty((2, count), dtype=torch.float32, device=h.device)
    dh = torch.empty_like(h) if with_gradient else None
    for start in range(0, count, CHUNK_LABELS):
        part = slice(start, min(start + CHUNK_LABELS, count))
        logits = torch.mm(h[part], head.t())
        loss_weights = labels.loss_weights[part] if with_gradient else None
        cross_entropy(logits, labels.tokens[part], loss_weights, logp[part], hits[part], cap)
        if dh is not None:  # then `logits` hold their gradient
            torch.mm(logits, head, out=dh[part])
    return span_sums(logp, labels.bounds), span_sums(hits, labels.bounds), dh
