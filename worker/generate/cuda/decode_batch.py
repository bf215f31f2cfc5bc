"""A decode step as one upload: every number it reads in one int32 buffer whose shape repeats, so that graphs can be replayed.

Knows sequences and the kernels' tables; knows no weights. Rows beyond the sequences are padding of length 0.
"""

from collections.abc import Sequence as Many
from dataclasses import dataclass
from functools import partial
from itertools import groupby

import numpy as np
from grouped_lora import Span
from grouped_lora.block.sequence_table import SequenceTable
from grouped_lora.work_table import ClassSize, host_table
from numpy.typing import NDArray
from torch import Tensor

from worker.generate.cuda.cached_stack import CachedBatch
from worker.generate.sequence import Sequence
from worker.model.arena import Slot
from worker.model.cuda.batches.device_batch import Grain, token_bucket
from worker.model.cuda.batches.upload_buffer import UploadLayout

GRAIN = Grain(2, 8, 16)  # sequences come and go: few buckets, which repeat


@dataclass(frozen=True)
class DecodeShape:
    """What a decode step's launches depend on. pages: columns of the tables. classes: the work table's rank classes."""

    rows: int
    pages: int
    classes: tuple[ClassSize, ...]

    def takes_as_much_as(self, other: "DecodeShape") -> bool:
        """Whether a step of this shape takes no less memory than one of the other, their logits aside."""

        def sizes(shape: DecodeShape) -> tuple[int, ...]:
            return shape.rows, shape.pages, shape.classes[-1].rank_class, len(shape.classes)

        return all(own >= its for own, its in zip(sizes(self), sizes(other), strict=True))

    def layout(self) -> UploadLayout:
        fields = {"tokens": (self.rows,), "positions": (self.rows,), "lengths": (self.rows,), "tables": (self.rows, self.pages)}
        return UploadLayout(fields, self.classes)


def by_adapter(sequences: Many[Sequence]) -> list[int]:
    """The sequences' places in order of their adapters' rows in the arena, the base's first."""
    return sorted(range(len(sequences)), key=lambda place: _row(sequences[place]))


def _row(sequence: Sequence) -> int:
    return sequence.adapter.row if isinstance(sequence.adapter, Slot) else -1


def adapter_spans(sequences: Many[Sequence]) -> tuple[tuple[Span, ...], list[Slot]]:
    """One span per adapter over a decode step's rows, and the adapters' slots. The sequences are in order of their adapters."""
    spans, slots, at = [], [], 0
    for slot, own in groupby(sequences, key=lambda sequence: sequence.adapter):
        count = len(list(own))
        if isinstance(slot, Slot):
            spans.append(Span(at, at + count, slot.row, slot.rank, slot.scale))
            slots.append(slot)
        at += count
    return tuple(spans), slots


def decode_buffer(sequences: Many[Sequence], spans: tuple[Span, ...]) -> tuple[DecodeShape, NDArray[np.int32]]:
    """The upload of one step. sequences: in order of their adapters, each with at least one generated token."""
    rows = token_bucket(len(sequences), GRAIN)
    table = host_table(spans, rows, (), GRAIN.spans, GRAIN.blocks)
    most = 1 << (max(len(sequence.pages) for sequence in sequences) - 1).bit_length()
    shape = DecodeShape(rows, most, table.sizes)
    layout = shape.layout()
    flat = layout.empty()
    cached = np.array([sequence.cached for sequence in sequences], np.int32)
    layout.put(flat, "tokens", np.array([sequence.generated[-1] for sequence in sequences], np.int32))
    layout.put(flat, "positions", cached)
    layout.put(flat, "lengths", cached + 1)
    tables = layout.field(flat, "tables")
    for row, sequence in enumerate(sequences):
        tables[row, : len(sequence.pages)] = sequence.pages
    layout.put_table(flat, table)
    return shape, flat


def unpack_decode(shape: DecodeShape, flat: Tensor, page_tokens: int) -> CachedBatch:
    """An uploaded buffer as the fused layers read it. Where keys are written is computed on the device."""
    layout = shape.layout()
    field = partial(layout.field, flat)
    positions, tables = field("positions"), field("tables")
    pages = tables.gather(1, (positions // page_tokens).long()[:, None])[:, 0].long()
    return CachedBatch(
        tokens=field("tokens"),
        positions=positions,
        sequences=SequenceTable(tables),  # read by prompts alone
        table=layout.table(flat),
        pages=pages,
        places=(positions % page_tokens).long(),
        tables=tables,
        lengths=field("lengths"),
    )
