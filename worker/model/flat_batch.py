"""FlatBatch: the sequences of many jobs laid end to end on one token axis, without padding. Knows no model and no loss.

Only tokens that a label depends on are laid out: a row's last label is predicted from the token before it, so what follows
is left off (exact, since attention is causal). An example without labels takes no tokens.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from grouped_lora.base.frozen_product import whole_rows
from grouped_lora.dropout import token_keys
from numpy.typing import NDArray
from torch import Tensor

from worker.model.arena import Slot
from worker.model.example import Example

ACTIVATION_ROWS = 128  # rows of one activation call, so that its data stays in a core's cache


@dataclass(frozen=True)
class Dropout:
    """What a pass's dropout is drawn from, beside each token's place: the probability, the job's seed, its optimizer step, and
    the first row of the pass within the step. So a row has the same mask however the step is split."""

    probability: float
    seed: int
    step: int
    first: int = 0

    def keys(self, examples: Sequence[Example]) -> NDArray[np.uint32]:
        """The dropout keys of these rows' tokens."""
        return token_keys(self.seed, self.step, range(self.first, self.first + len(examples)), [e.length for e in examples])


@dataclass(frozen=True)
class Segment:
    """The examples of one job in a pass. slot None: the base alone. loss_weight: each label's factor of -log p in the loss (1 /
    the label count of the job's step, so that micro-batches add up to the mean). dropout: None while evaluating."""

    slot: Slot | None
    examples: Sequence[Example]
    loss_weight: float = 1.0
    dropout: Dropout | None = None

    @property
    def dropout_probability(self) -> float:
        """Of each of its adapter's inputs."""
        return self.dropout.probability if self.dropout is not None and self.slot is not None else 0.0


@dataclass(frozen=True)
class FlatBatch:
    """
    tokens, positions: int64 [T], positions restart with every sequence.
    bounds: T-offsets of the sequences, [sequences + 1]; the axis ends in a tail of no segment (see whole_rows).
    ranges: per segment its tokens [start, stop).
    activation_ranges: all rows, tail included, split where a segment ends and every ACTIVATION_ROWS from its start.
    label_indices, label_tokens: int64 [L], the place on T that each label is predicted from, and the label, segment by segment.
    label_bounds: per segment its labels, [segments + 1].
    keys: uint32 [T], dropout's key of each token (0 where nothing drops); None where nothing drops at all.
    """

    segments: Sequence[Segment]
    tokens: Tensor
    positions: Tensor
    bounds: tuple[int, ...]
    ranges: tuple[tuple[int, int], ...]
    activation_ranges: tuple[tuple[int, int], ...]
    label_indices: Tensor
    label_tokens: Tensor
    label_bounds: tuple[int, ...]
    keys: NDArray[np.uint32] | None = None

    @property
    def size(self) -> int:
        """T without the tail."""
        return self.bounds[-1]

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence."""
        return max((stop - start for start, stop in self.sequences()), default=0)

    def sequences(self) -> Iterator[tuple[int, int]]:
        return pairwise(self.bounds)

    @classmethod
    def of(cls, segments: Sequence[Segment], device: torch.device | str = "cpu") -> "FlatBatch":
        tokens: list[NDArray[np.int32]] = []
        indices: list[NDArray[np.int64]] = []
        labels: list[NDArray[np.int32]] = []
        bounds, ranges, label_bounds = [0], [], [0]
        for segment in segments:
            start, count = bounds[-1], label_bounds[-1]
            for example in segment.examples:
                places = np.flatnonzero(example.loss_mask)
                if not len(places):
                    continue
                indices.append(places - 1 + bounds[-1])
                labels.append(example.tokens[places])
                tokens.append(example.tokens[: places[-1]])
                bounds.append(bounds[-1] + int(places[-1]))
                count += len(places)
            ranges.append((start, bounds[-1]))
            label_bounds.append(count)
        tail = whole_rows(bounds[-1]) - bounds[-1]
        positions = [np.arange(stop - start) for start, stop in pairwise(bounds)]
        return cls(
            segments=segments,
            tokens=_flat([*tokens, np.zeros(tail, np.int32)], device),
            positions=_flat([*positions, np.zeros(tail, np.int64)], device),
            bounds=tuple(bounds),
            ranges=tuple(ranges),
            activation_ranges=_activation_ranges([*ranges, (bounds[-1], bounds[-1] + tail)]),
            label_indices=_flat(indices, device),
            label_tokens=_flat(labels, device),
            label_bounds=tuple(label_bounds),
            keys=_keys(segments, ranges, bounds[-1] + tail),
        )


def _activation_ranges(ranges: Sequence[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    return tuple((at, min(at + ACTIVATION_ROWS, stop)) for start, stop in ranges for at in range(start, stop, ACTIVATION_ROWS))


def _keys(segments: Sequence[Segment], ranges: Sequence[tuple[int, int]], size: int) -> NDArray[np.uint32] | None:
    if not any(segment.dropout_probability for segment in segments):
        return None
    keys = np.zeros(size, np.uint32)
    for segment, (start, stop) in zip(segments, ranges, strict=True):
        if segment.dropout is not None and segment.dropout_probability:
            keys[start:stop] = segment.dropout.keys(segment.examples)
    return keys


def _flat(parts: Sequence[NDArray[np.int32] | NDArray[np.int64]], device: torch.device | str) -> Tensor:
    joined = np.concatenate(parts) if parts else np.zeros(0)
    return torch.from_numpy(joined.astype(np.int64, copy=False)).to(device)
