"""Work tables: which program of a launch works on whose tokens. Built once per step on the host and shared by all layers.

Knows token ranges, arena rows and ranks; knows nothing of layers, matrices or losses. A table has a fixed capacity, so that a
captured graph can be replayed with other contents: programs beyond the last entry find an empty range and return.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from grouped_lora.span import Span

BLOCK_T = 64
SPAN_COLUMNS = 5  # first token, end, first arena row, exact rank, 1 = add to the gradient that is there
BLOCK_COLUMNS = 3  # span, first token, end
RANK_CLASSES = (16, 32, 64, 128, 256)
# Tokens that no adapter owns are cut into spans of this length, so that programs which walk a span stay balanced.
OWNERLESS_SPAN = 512


@dataclass(frozen=True)
class WorkTable:
    """spans [N, 5] int32, scales [N] fp32, blocks [M, 3] int32 on the device; `max_rank` is the class every rank fits in (0: none)."""

    spans: torch.Tensor
    scales: torch.Tensor
    blocks: torch.Tensor
    max_rank: int


@dataclass(frozen=True)
class HostTable:
    """A work table's contents on the host, padded to its capacity."""

    spans: np.ndarray
    scales: np.ndarray
    blocks: np.ndarray
    max_rank: int

    def on(self, device: torch.device | str) -> WorkTable:
        parts = (torch.from_numpy(part).to(device) for part in (self.spans, self.scales, self.blocks))
        return WorkTable(*parts, max_rank=self.max_rank)


def rank_class(rank: int) -> int:
    """The smallest tile width that holds `rank`; 0 for 0. Raises ValueError above 256."""
    if rank == 0:
        return 0
    for width in RANK_CLASSES:
        if rank <= width:
            return width
    raise ValueError(f"rank {rank} is above {RANK_CLASSES[-1]}, the largest rank a kernel takes")


def span_bound(tokens: int, adapters: int) -> int:
    """Spans that suffice for any split of `tokens` among at most `adapters` adapters in order, ownerless tokens between them."""
    return 2 * adapters + 1 + tokens // OWNERLESS_SPAN


def block_bound(tokens: int, adapters: int) -> int:
    """Token blocks that suffice for such a split."""
    return -(-tokens // BLOCK_T) + span_bound(tokens, adapters)


def host_table(spans: Sequence[Span], tokens: int, adapters: int, accumulate: Sequence[bool] = ()) -> HostTable:
    """The table of one step, with room for any other step of as many tokens and at most `adapters` adapters.

    Tokens that no span names get rank-0 spans. accumulate[i]: span i adds to its gradient rows instead of overwriting them.
    Raises ValueError where spans overlap or leave the step.
    """
    if len(spans) > adapters:
        raise ValueError(f"{len(spans)} adapters do not fit a table for {adapters}")
    adds = list(accumulate) or [False] * len(spans)
    entries: list[tuple[int, int, int, int, int, float]] = []
    cursor = 0

    def ownerless(until: int) -> None:
        entries.extend((at, min(at + OWNERLESS_SPAN, until), 0, 0, 0, 0.0) for at in range(cursor, until, OWNERLESS_SPAN))

    for span, add in sorted(zip(spans, adds, strict=True), key=lambda pair: (pair[0].start, pair[0].stop)):
        if span.start < cursor or span.stop > tokens:
            raise ValueError(f"span [{span.start}, {span.stop}) overlaps its neighbour or leaves the step's {tokens} tokens")
        ownerless(span.start)
        if span.stop > span.start:
            entries.append((span.start, span.stop, span.row, span.rank, int(add), span.scale))
        cursor = span.stop
    ownerless(tokens)
    table = np.zeros((span_bound(tokens, adapters), SPAN_COLUMNS), np.int32)
    scales = np.zeros(table.shape[0], np.float32)
    blocks = np.zeros((block_bound(tokens, adapters), BLOCK_COLUMNS), np.int32)
    block = 0
    for index, (start, stop, row, rank, add, scale) in enumerate(entries):
        table[index] = (start, stop, row, rank, add)
        scales[index] = scale
        for at in range(start, stop, BLOCK_T):
            blocks[block] = (index, at, min(at + BLOCK_T, stop))
            block += 1
    return HostTable(table, scales, blocks, rank_class(max((entry[3] for entry in entries), default=0)))


def work_table(
    spans: Sequence[Span], tokens: int, device: torch.device | str, accumulate: Sequence[bool] = ()
) -> WorkTable:
    """The table of one step on the device, sized to it."""
    return host_table(spans, tokens, len(spans), accumulate).on(device)
