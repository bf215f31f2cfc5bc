"""Sequence table: which block of the token axis belongs to which sequence, built once per step on the host for attention.

Knows token ranges and the work table's spans. Knows no heads, no layers and no device.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

BLOCK = 64
SEQUENCE_COLUMNS = 4  # first token of the block, its sequence's first token and end, the sequence's span in the work table


@dataclass(frozen=True)
class SequenceTable:
    """blocks [N, 4] int32, as SEQUENCE_COLUMNS names them; empty entries have end 0."""

    blocks: torch.Tensor


def sequence_blocks(bounds: Sequence[int], capacity: int | None = None, spans: np.ndarray | None = None) -> np.ndarray:
    """blocks [capacity, 4] for sequences [bounds[i], bounds[i + 1]); without a capacity, as many blocks as the sequences need.

    spans: those of the work table; each sequence lies within one span or has no adapter. Raises ValueError if they do not fit.
    """
    starts, stops = np.asarray(bounds[:-1], np.int32), np.asarray(bounds[1:], np.int32)
    counts = -(-(stops - starts) // BLOCK)
    total = int(counts.sum())
    if capacity is not None and total > capacity:
        raise ValueError(f"{total} attention blocks do not fit a table of {capacity}")
    blocks = np.zeros((max(total, 1) if capacity is None else capacity, SEQUENCE_COLUMNS), np.int32)
    first = np.repeat(np.cumsum(counts) - counts, counts)
    blocks[:total, 0] = np.repeat(starts, counts) + (np.arange(total) - first) * BLOCK
    blocks[:total, 1] = np.repeat(starts, counts)
    blocks[:total, 2] = np.repeat(stops, counts)
    if spans is not None:
        used = np.flatnonzero(spans[:, 1])
        used = used[np.argsort(spans[used, 0])]
        blocks[:total, 3] = np.repeat(used[np.searchsorted(spans[used, 0], starts, "right") - 1], counts)
    return blocks
