"""A flat batch as one upload: every number that forward and backward read, packed into one int32 buffer whose shape repeats.

Knows FlatBatch and the kernels' tables; knows no weights, no labels (label_batch.py) and no trainer. Padding fills the token
axis up to the bucket's size with tokens of no adapter, so that a captured graph accepts any batch of its bucket.
"""

from dataclasses import dataclass
from functools import lru_cache, partial

import numpy as np
from grouped_lora import Span
from grouped_lora.block.sequence_table import BLOCK, SEQUENCE_COLUMNS, SequenceTable, sequence_blocks
from grouped_lora.work_table import ClassSize, HostTable, WorkTable, holds, host_table
from numpy.typing import NDArray
from torch import Tensor

from worker.model.cuda.batches.upload_buffer import UploadLayout
from worker.model.flat_batch import FlatBatch


def bucket(count: int, steps: int, least: int) -> int:
    """`count` rounded up to one of `steps` evenly spaced sizes an octave, multiples of `least`. At most 1/steps is added, or
    `least` - 1 where that is more."""
    step = max(least, (1 << max(count - 1, 1).bit_length() - 1) // steps)
    return -(-max(count, 1) // step) * step


@dataclass(frozen=True)
class Grain:
    """How fine buckets are. steps: of tokens, an octave; spans, blocks: in which work tables grow, as of host_table."""

    steps: int
    spans: int
    blocks: int | None


# Of launched passes: padding of at most 1/32 above 1,024 tokens, and few programs without work. Multiples of 4, so that each
# class's part of a table begins on 16 bytes: by that kernels are compiled.
FINE = Grain(32, 4, 4)
# Of passes that are captured, so that few buckets repeat whoever shares the pass: twice the padding, and four times, where
# passes are short: they differ more, and padding costs less beside a capture.
COARSE = Grain(16, 8, None)
REPEATED = Grain(8, 4, None)


TAIL_PART = 512  # tokens of padding that attend to each other, a multiple of BLOCK: a longer part would take quadratic time


def token_bucket(tokens: int, grain: Grain = FINE) -> int:
    """Length of the axis for a batch of `tokens` tokens, padding included."""
    return bucket(tokens, grain.steps, 32)


def tables(
    batch: FlatBatch, spans: tuple[Span, ...], accumulate: tuple[bool, ...], grain: Grain = FINE, tokens: int | None = None
) -> HostTable:
    """The work table of a batch on an axis of `tokens` tokens; left out, on its bucket. accumulate[i]: span i's gradient adds
    to what is there."""
    axis = token_bucket(batch.size, grain) if tokens is None else tokens
    return host_table(spans, axis, accumulate, grain.spans, grain.blocks)


@dataclass(frozen=True)
class DeviceBatch:
    """A flat batch on the device: tokens and positions int32 [T], its sequences, and the work table of its adapters."""

    tokens: Tensor
    positions: Tensor
    sequences: SequenceTable
    table: WorkTable


@dataclass(frozen=True)
class BatchShape:
    """What the launches of forward and backward depend on. classes: the work table's rank classes. has_dropout: whether any
    adapter has."""

    tokens: int
    sequences: int
    classes: tuple[ClassSize, ...]
    has_dropout: bool = False

    @classmethod
    def of(cls, batch: FlatBatch, table: HostTable, grain: Grain = FINE) -> "BatchShape":
        """The bucket of a batch: tokens by `grain`, sequences in powers of two."""
        return cls(
            tokens=token_bucket(batch.size, grain),
            sequences=_power(len(batch.bounds)),
            classes=table.sizes,
            has_dropout=batch.keys is not None,
        )

    @property
    def attention_blocks(self) -> int:
        return -(-self.tokens // BLOCK) + self.sequences + 1

    def may_take(self, other: "BatchShape") -> bool:
        """Whether a batch of the other bucket fits this one's buffer, with launches for its ranks; on this one's longer axis
        its work table may still have too many entries."""

        fits = self.tokens >= other.tokens and self.sequences >= other.sequences
        return fits and self.has_dropout == other.has_dropout and holds(self.classes, other.classes)

    def padding_of(self, other: "BatchShape") -> float:
        """How much longer at most a pass of this bucket takes than one of the other, as a fraction."""
        return self.tokens / other.tokens - 1

    def takes_as_much_as(self, other: "BatchShape") -> bool:
        """Whether a pass of this shape takes no less memory than one of the other in the same mode."""

        def sizes(shape: BatchShape) -> tuple[int, ...]:
            return shape.tokens, shape.classes[-1].rank_class, len(shape.classes), shape.has_dropout

        return all(own >= its for own, its in zip(sizes(self), sizes(other), strict=True))


@lru_cache(maxsize=256)
def _layout(shape: BatchShape) -> UploadLayout:
    fields = {
        "tokens": (shape.tokens,),
        "positions": (shape.tokens,),
        "attention": (shape.attention_blocks, SEQUENCE_COLUMNS),
        "keys": (shape.tokens if shape.has_dropout else 0,),
    }
    return UploadLayout(fields, shape.classes)


def _power(count: int) -> int:
    return 1 << max(count - 1, 0).bit_length()


def fill(shape: BatchShape, batch: FlatBatch, table: HostTable) -> NDArray[np.int32]:
    """The buffer of one batch; `batch` lies on the host."""
    layout = _layout(shape)
    flat = layout.empty()
    put = partial(layout.put, flat)
    put("tokens", batch.tokens.numpy()[: batch.size])
    put("positions", batch.positions.numpy()[: batch.size])
    layout.put_table(flat, table)
    bounds = (*batch.bounds, *range(batch.size + TAIL_PART, shape.tokens, TAIL_PART))
    bounds = (*bounds, shape.tokens) if shape.tokens > batch.size else bounds
    put("attention", sequence_blocks(bounds, shape.attention_blocks, table.spans))
    if batch.keys is not None:
        put("keys", batch.keys[: batch.size].view(np.int32))
    return flat


def unpack(shape: BatchShape, flat: Tensor) -> DeviceBatch:
    """Views of an uploaded buffer."""
    layout = _layout(shape)
    field = partial(layout.field, flat)
    table = layout.table(flat, field("keys") if shape.has_dropout else None)
    return DeviceBatch(field("tokens"), field("positions"), SequenceTable(field("attention")), table)
