"""The labels of a flat batch as one upload. It is beside the pass's own buffer (device_batch.py), since no captured graph reads
it: the head is launched in each pass, over exactly its labels. Knows FlatBatch; knows no buckets and no weights.
"""

from functools import lru_cache, partial
from itertools import pairwise

import numpy as np
import torch

from worker.model.cuda.fused_head import Labels
from worker.model.cuda.upload_buffer import UploadLayout, upload
from worker.model.flat_batch import FlatBatch

LABEL_STEP = 64  # padded to multiples of it, as products of bf16 and the kernels want their rows


@lru_cache(maxsize=256)
def _layout(labels: int, segments: int) -> UploadLayout:
    fields = {"indices": (labels,), "tokens": (labels,), "loss_weights": (labels,), "bounds": (segments + 1,)}
    return UploadLayout(fields, ())


def upload_labels(batch: FlatBatch, tokens: int, device: torch.device) -> Labels:
    """The labels of a batch that lies on the host, for a pass on an axis of `tokens` tokens: padding labels are predicted from
    the place behind it. Waits for nothing."""
    count = batch.label_bounds[-1]
    padded = max(-(-count // LABEL_STEP), 1) * LABEL_STEP
    layout = _layout(padded, len(batch.segments))
    flat = layout.empty()
    counts = [stop - start for start, stop in pairwise(batch.label_bounds)]
    layout.put(flat, "indices", np.concatenate([batch.label_indices.numpy(), np.full(padded - count, tokens)]))
    layout.put(flat, "tokens", batch.label_tokens.numpy())
    layout.put(flat, "loss_weights", np.repeat(np.array([segment.loss_weight for segment in batch.segments]), counts))
    layout.put(flat, "bounds", np.array(batch.label_bounds))
    field = partial(layout.field, upload(flat, device))
    return Labels(field("indices"), field("tokens"), field("loss_weights").view(torch.float32), field("bounds"))
