"""The labels of a flat batch, and the axis of the tokens that they are predicted from, as one upload. It is beside the pass's
own buffer (device_batch.py), since no captured graph reads it: what lies behind the last attention is launched in each pass,
over exactly its labels. Knows FlatBatch and the kernels' tables; knows no buckets and no weights.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import pairwise

import numpy as np
import torch
from grouped_lora import Span
from grouped_lora.work_table import ClassSize, HostTable, WorkTable, host_table
from torch import Tensor

from worker.model.cuda.batches.device_batch import FINE, BatchShape
from worker.model.cuda.batches.upload_buffer import UploadLayout, upload
from worker.model.flat_batch import FlatBatch

LABEL_STEP = 64  # padded to multiples of it, as products of bf16 and the kernels want their rows


@dataclass(frozen=True)
class Labels:
    """tokens int [L labels]. loss_weights fp32 [L]: each label's factor of -log p in the gradient (0 for padding). bounds int32
    [segments + 1]: each segment's labels."""

    tokens: Tensor
    loss_weights: Tensor
    bounds: Tensor


@dataclass(frozen=True)
class LabelBatch:
    """indices int [L]: the place on the pass's axis of T tokens that each label is predicted from; T for padding. table: the
    adapters' work on the axis of these L tokens, its rank classes those of the pass's table."""

    indices: Tensor
    table: WorkTable
    labels: Labels

    def of(self, tokens: Tensor) -> Tensor:
        """[L, N] of [T, N]; padding takes the last token's."""
        return tokens.index_select(0, self.indices.clamp(max=tokens.shape[0] - 1))

    def spread(self, values: Tensor, tokens: int, out: Tensor | None) -> Tensor:
        """`values` [L, ...] at their places of T `tokens`, 0 elsewhere: [T, ...]. out [T + 1, ...]: where they are written, if
        not to memory of their own; its last row takes what padding has."""
        room = out.zero_() if out is not None else values.new_zeros(tokens + 1, *values.shape[1:])
        return room.index_copy_(0, self.indices.long(), values)[:-1]


@lru_cache(maxsize=256)
def _layout(labels: int, segments: int, has_dropout: bool, classes: tuple[ClassSize, ...]) -> UploadLayout:
    fields = {"indices": (labels,), "tokens": (labels,), "loss_weights": (labels,), "bounds": (segments + 1,)}
    return UploadLayout(fields | {"keys": (labels if has_dropout else 0,)}, classes)


def upload_labels(
    batch: FlatBatch, spans: Sequence[Span], accumulate: Sequence[bool], shape: BatchShape, device: torch.device
) -> LabelBatch:
    """The labels of a batch that lies on the host, for a pass in the bucket `shape`. spans, accumulate: as the pass's table has
    them, on its axis. Waits for nothing."""
    count, indices = batch.label_bounds[-1], batch.label_indices.numpy()
    padded = max(-(-count // LABEL_STEP), 1) * LABEL_STEP
    table = _table(indices, spans, accumulate, padded, shape)
    layout = _layout(padded, len(batch.segments), shape.has_dropout, table.sizes)
    flat = layout.empty()
    counts = [stop - start for start, stop in pairwise(batch.label_bounds)]
    put = partial(layout.put, flat)
    put("indices", np.concatenate([indices, np.full(padded - count, shape.tokens)]))
    put("tokens", batch.label_tokens.numpy())
    put("loss_weights", np.repeat(np.array([segment.loss_weight for segment in batch.segments]), counts))
    put("bounds", np.array(batch.label_bounds))
    if batch.keys is not None:
        put("keys", batch.keys[indices].view(np.int32))
    layout.put_table(flat, table)
    uploaded = upload(flat, device)
    field = partial(layout.field, uploaded)
    labels = Labels(field("tokens"), field("loss_weights").view(torch.float32), field("bounds"))
    keys = field("keys") if shape.has_dropout else None
    return LabelBatch(field("indices"), layout.table(uploaded, keys), labels)


def _table(indices: np.ndarray, spans: Sequence[Span], accumulate: Sequence[bool], labels: int, shape: BatchShape) -> HostTable:
    """The work table of the label tokens, which lie in the order of the pass's tokens. S and dS are as wide as the pass's."""
    own = [
        replace(span, start=start, stop=stop)
        for span in spans
        for start, stop in [np.searchsorted(indices, (span.start, span.stop)).tolist()]
    ]
    table = host_table(own, labels, accumulate, FINE.spans, FINE.blocks)
    classes = zip(shape.classes, table.sizes, strict=True)
    return table.padded([size._replace(rank_class=of_pass.rank_class) for of_pass, size in classes])
