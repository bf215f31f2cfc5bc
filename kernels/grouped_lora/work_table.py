"""Work tables: which program of a launch processes which tokens. Built once per pass on the host and shared by all layers.

Work is sorted by rank class, and kernels are launched once a class: ranks up to 64 are one class, whose programs choose among
its tile widths; 128 and 256 are classes of their own, since a launch has the registers of its widest tile and its warps. Knows
token ranges, arena rows and ranks. Knows no layers, no matrices and no losses. A table has a fixed capacity, so that a
captured graph can be replayed with other contents: programs beyond the last entry find an empty range and return.
"""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from grouped_lora.adapter_spans import Span
from grouped_lora.dropout import threshold

BLOCK_T = 64
SPAN_COLUMNS = 6  # first token, end, first arena row, exact rank, accumulate (1: add to the gradient), dropout's threshold
BLOCK_COLUMNS = 3  # span, first token, end
BLOCK_STEP = 16  # in which a class's blocks grow at least where no other number is given
TILE_WIDTHS = (16, 32, 64, 128, 256)
NARROW = 64  # ranks up to it are one class, and share a launch
# Tokens without an adapter are cut into spans of this length, so that programs which walk a span stay balanced.
UNADAPTED_SPAN = 512
Entry = tuple[int, int, int, int, int, int, float]  # the columns of a span, and its scale


class ClassSize(NamedTuple):
    """A rank class of a table: the tile width that holds its ranks (0: no adapters), and how many of the table's spans and
    blocks it has, empty ones included."""

    rank_class: int
    spans: int
    blocks: int


@dataclass(frozen=True)
class ClassTable:
    """The part of a table that one launch processes; its blocks count spans from the class's first."""

    rank_class: int
    spans: torch.Tensor
    scales: torch.Tensor
    blocks: torch.Tensor


@dataclass(frozen=True)
class WorkTable:
    """spans [N, 6] int32, scales [N] fp32, blocks [M, 3] int32 on the device, by ascending rank class (`sizes`).

    keys [T] int32: dropout's key of each token (dropout.py); None where no adapter has dropout.
    """

    spans: torch.Tensor
    scales: torch.Tensor
    blocks: torch.Tensor
    sizes: tuple[ClassSize, ...]
    keys: torch.Tensor | None = None

    @property
    def max_rank(self) -> int:
        """The tile width that holds every rank, and S's stored width (0: no adapters)."""
        return self.sizes[-1].rank_class

    @cached_property
    def classes(self) -> tuple[ClassTable, ...]:
        """The part of each launch that processes tokens without an adapter, too. Such tokens are of the first class."""
        span = block = 0
        found = []
        for size in self.sizes:
            own, blocks = slice(span, span + size.spans), slice(block, block + size.blocks)
            found.append(ClassTable(size.rank_class, self.spans[own], self.scales[own], self.blocks[blocks]))
            span, block = own.stop, blocks.stop
        return tuple(found)

    @cached_property
    def adapted(self) -> tuple[ClassTable, ...]:
        """The part of each launch that processes adapters alone."""
        return tuple(part for part in self.classes if part.rank_class)


@dataclass(frozen=True)
class HostTable:
    """A work table's contents on the host, padded to its capacity."""

    spans: np.ndarray
    scales: np.ndarray
    blocks: np.ndarray
    sizes: tuple[ClassSize, ...]

    def padded(self, sizes: Sequence[ClassSize]) -> "HostTable":
        """The same table in the capacity of another one. Raises ValueError where it does not fit (see `holds`)."""
        if not holds(sizes, self.sizes):
            raise ValueError(f"a table of {self.sizes} does not fit one of {tuple(sizes)}")
        spans = np.zeros((sum(size.spans for size in sizes), SPAN_COLUMNS), np.int32)
        scales = np.zeros(spans.shape[0], np.float32)
        blocks = np.zeros((sum(size.blocks for size in sizes), BLOCK_COLUMNS), np.int32)
        span = block = own_span = own_block = 0
        for size, own in zip(sizes, self.sizes, strict=True):
            spans[span : span + own.spans] = self.spans[own_span : own_span + own.spans]
            scales[span : span + own.spans] = self.scales[own_span : own_span + own.spans]
            blocks[block : block + own.blocks] = self.blocks[own_block : own_block + own.blocks]
            span, block = span + size.spans, block + size.blocks
            own_span, own_block = own_span + own.spans, own_block + own.blocks
        return HostTable(spans, scales, blocks, tuple(sizes))

    def on(self, device: torch.device | str) -> WorkTable:
        spans, scales, blocks = (torch.from_numpy(part).to(device) for part in (self.spans, self.scales, self.blocks))
        return WorkTable(spans, scales, blocks, self.sizes)


def holds(sizes: Sequence[ClassSize], own: Sequence[ClassSize]) -> bool:
    """Whether a table of these sizes has room for one of `own`, with a launch for each of its rank classes."""
    if len(sizes) != len(own):
        return False
    return all(
        _class_of(size.rank_class) == _class_of(its.rank_class) and all(a >= b for a, b in zip(size, its, strict=True))
        for size, its in zip(sizes, own, strict=True)
    )


def _class_of(rank: int) -> int:
    return max(NARROW, tile_width(rank))


def tile_width(rank: int) -> int:
    """The smallest tile width that holds `rank`; 0 for 0. Raises ValueError above 256."""
    if rank == 0:
        return 0
    for width in TILE_WIDTHS:
        if rank <= width:
            return width
    raise ValueError(f"rank {rank} is above {TILE_WIDTHS[-1]}, the largest rank a kernel takes")


def usual_blocks(tokens: int, spans: int) -> int:
    """How many blocks so many spans of `tokens` tokens in all have nearly always. The last block of each is half full on
    average, so there are half as many blocks as spans more than the tokens fill; and three standard deviations here."""
    return math.ceil(tokens / BLOCK_T + spans / 2 + 3 * math.sqrt(spans / 12))


def host_table(
    spans: Sequence[Span], tokens: int, accumulate: Sequence[bool] = (), span_step: int = 1, block_step: int | None = 1
) -> HostTable:
    """The table of one pass; each class's sizes are rounded up to multiples of the steps, so that they repeat. block_step
    None: a table of one class has as many blocks as its tokens and spans have nearly always, so that these two determine its
    size; of several classes, each has a multiple of a quarter to half of the pass's blocks.

    Larger tables repeat more often and cost more: an idle program occupies an SM slot for about a microsecond, and a launch has
    one program per entry and column tile. Tokens outside all spans get rank-0 spans. accumulate[i]: span i adds to its gradient
    rows instead of overwriting them. Raises ValueError where spans overlap or leave the step.
    """
    flags = list(accumulate) or [False] * len(spans)
    entries: list[Entry] = []
    cursor = 0

    def unadapted(until: int) -> None:
        entries.extend((at, min(at + UNADAPTED_SPAN, until), 0, 0, 0, 0, 0.0) for at in range(cursor, until, UNADAPTED_SPAN))

    for span, accumulates in sorted(zip(spans, flags, strict=True), key=lambda pair: (pair[0].start, pair[0].stop)):
        if span.start < cursor or span.stop > tokens:
            raise ValueError(f"span [{span.start}, {span.stop}) overlaps its neighbour or leaves the step's {tokens} tokens")
        unadapted(span.start)
        if span.stop > span.start:
            drop_threshold = threshold(span.dropout)
            entries.append((span.start, span.stop, span.row, span.rank, int(accumulates), drop_threshold, span.kept_scale))
        cursor = span.stop
    unadapted(tokens)
    classes = _by_class(entries)
    usual = tokens if block_step is None and len(classes) == 1 else None
    step = max(BLOCK_STEP, tokens // (2 * BLOCK_T) // BLOCK_STEP * BLOCK_STEP) if block_step is None else block_step
    parts = [_class_part(own, span_step, step, usual) for own in classes]
    spans_of, scales_of, blocks_of, sizes = zip(*parts, strict=True)
    return HostTable(np.concatenate(spans_of), np.concatenate(scales_of), np.concatenate(blocks_of), sizes)


def _by_class(entries: Sequence[Entry]) -> list[list[Entry]]:
    """The entries of each class, by ascending width. Those without an adapter join the first, so that they take no launch."""
    found = defaultdict[int, list[Entry]](list)
    for entry in entries:
        found[_class_of(entry[3])].append(entry)
    if len(found) > 1 and not any(entry[3] for entry in found[NARROW]):
        bare = found.pop(NARROW)
        found[min(found)] += bare
    return [found[width] for width in sorted(found)] or [[]]


def _class_part(
    entries: Sequence[Entry], span_step: int, block_step: int, tokens: int | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray, ClassSize]:
    """(spans, scales, blocks, size) of one class. tokens: of the only one, whose blocks are as many as they usually are."""
    blocks = [
        (index, at, min(at + BLOCK_T, stop))
        for index, (start, stop, *_) in enumerate(entries)
        for at in range(start, stop, BLOCK_T)
    ]
    table = np.zeros((-(-max(len(entries), 1) // span_step) * span_step, SPAN_COLUMNS), np.int32)
    scales = np.zeros(table.shape[0], np.float32)
    for index, entry in enumerate(entries):
        table[index], scales[index] = entry[:SPAN_COLUMNS], entry[SPAN_COLUMNS]
    capacity = -(-max(len(blocks), 1) // block_step) * block_step
    if tokens is not None:
        usual = usual_blocks(tokens, len(table))
        capacity = usual if len(blocks) <= usual else tokens // BLOCK_T + len(table)
    block_table = np.zeros((capacity, BLOCK_COLUMNS), np.int32)
    block_table[: len(blocks)] = np.array(blocks, np.int32).reshape(-1, BLOCK_COLUMNS)
    width = tile_width(max((entry[3] for entry in entries), default=0))
    return table, scales, block_table, ClassSize(width, table.shape[0], block_table.shape[0])


def work_table(
    spans: Sequence[Span],
    tokens: int,
    device: torch.device | str,
    accumulate: Sequence[bool] = (),
    keys: NDArray[np.uint32] | None = None,
) -> WorkTable:
    """The table of one pass on the device, without spare capacity."""
    table = host_table(spans, tokens, accumulate).on(device)
    return table if keys is None else replace(table, keys=torch.from_numpy(keys.view(np.int32)).to(device))
