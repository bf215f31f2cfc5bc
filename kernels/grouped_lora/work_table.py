"""Work tables: which program of a launch processes which tokens. Built once per pass on the host and shared by all layers.

Knows token ranges, arena rows and ranks. Knows no layers, no matrices and no losses. A table has a fixed capacity, so that a
captured graph can be replayed with other contents: programs beyond the last entry find an empty range and return.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from grouped_lora.adapter_spans import Span
from grouped_lora.dropout import threshold

BLOCK_T = 64
SPAN_COLUMNS = 6  # first token, end, first arena row, exact rank, accumulate (1: add to the gradient), dropout's threshold
BLOCK_COLUMNS = 3  # span, first token, end
RANK_CLASSES = (16, 32, 64, 128, 256)
# Tokens without an adapter are cut into spans of this length, so that programs which walk a span stay balanced.
OWNERLESS_SPAN = 512


@dataclass(frozen=True)
class WorkTable:
    """spans [N, 6] int32, scales [N] fp32, blocks [M, 3] int32 on the device; `max_rank` is the class that holds every rank (0:
    no adapters). keys [T] int32: dropout's key of each token (dropout.py); None where no adapter has dropout."""

    spans: torch.Tensor
    scales: torch.Tensor
    blocks: torch.Tensor
    max_rank: int
    keys: torch.Tensor | None = None


@dataclass(frozen=True)
class HostTable:
    """A work table's contents on the host, padded to its capacity."""

    spans: np.ndarray
    scales: np.ndarray
    blocks: np.ndarray
    max_rank: int

    def on(self, device: torch.device | str) -> WorkTable:
        spans, scales, blocks = (torch.from_numpy(part).to(device) for part in (self.spans, self.scales, self.blocks))
        return WorkTable(spans, scales, blocks, self.max_rank)


def rank_class(rank: int) -> int:
    """The smallest tile width that holds `rank`; 0 for 0. Raises ValueError above 256."""
    if rank == 0:
        return 0
    for width in RANK_CLASSES:
        if rank <= width:
            return width
    raise ValueError(f"rank {rank} is above {RANK_CLASSES[-1]}, the largest rank a kernel takes")


def host_table(
    spans: Sequence[Span], tokens: int, accumulate: Sequence[bool] = (), span_step: int = 1, block_step: int = 1
) -> HostTable:
    """The table of one pass; sizes are rounded up to multiples of the steps, so that they repeat from pass to pass.

    No larger than that: an idle program occupies an SM slot for about a microsecond, and a launch has one program per entry and
    column tile. Tokens outside all spans get rank-0 spans. accumulate[i]: span i adds to its gradient rows instead of
    overwriting them. Raises ValueError where spans overlap or leave the step.
    """
    flags = list(accumulate) or [False] * len(spans)
    entries: list[tuple[int, int, int, int, int, int, float]] = []
    cursor = 0

    def ownerless(until: int) -> None:
        entries.extend((at, min(at + OWNERLESS_SPAN, until), 0, 0, 0, 0, 0.0) for at in range(cursor, until, OWNERLESS_SPAN))

    for span, accumulates in sorted(zip(spans, flags, strict=True), key=lambda pair: (pair[0].start, pair[0].stop)):
        if span.start < cursor or span.stop > tokens:
            raise ValueError(f"span [{span.start}, {span.stop}) overlaps its neighbour or leaves the step's {tokens} tokens")
        ownerless(span.start)
        if span.stop > span.start:
            limit = threshold(span.dropout)
            entries.append((span.start, span.stop, span.row, span.rank, int(accumulates), limit, span.kept_scale))
        cursor = span.stop
    ownerless(tokens)
    blocks = [
        (index, at, min(at + BLOCK_T, stop))
        for index, (start, stop, *_) in enumerate(entries)
        for at in range(start, stop, BLOCK_T)
    ]
    table = np.zeros((-(-max(len(entries), 1) // span_step) * span_step, SPAN_COLUMNS), np.int32)
    scales = np.zeros(table.shape[0], np.float32)
    for index, entry in enumerate(entries):
        table[index], scales[index] = entry[:SPAN_COLUMNS], entry[SPAN_COLUMNS]
    block_table = np.zeros((-(-max(len(blocks), 1) // block_step) * block_step, BLOCK_COLUMNS), np.int32)
    block_table[: len(blocks)] = np.array(blocks, np.int32).reshape(-1, BLOCK_COLUMNS)
    return HostTable(table, scales, block_table, rank_class(max((entry[3] for entry in entries), default=0)))


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
