"""Sequences of one job as a pass takes them, for training steps and evaluations alike. Runs nothing, and knows no losses."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from worker.model.arena import Slot
from worker.model.example import Example
from worker.model.flat_batch import Dropout, Segment


@dataclass(frozen=True)
class AdapterSequences:
    """Sequences to run with an adapter. lengths: tokens of each on the axis. dropout: of the first sequence; None: no dropout.
    piece_tokens: tokens of a piece of them, where passes of several tasks may be shorter or longer; None: of a pass.
    placement: theirs, which an OutOfMemory names."""

    slot: Slot | None
    examples: Sequence[Example]
    lengths: Sequence[int]
    dropout: Dropout | None = None
    piece_tokens: int | None = None
    placement: str | None = None


def segments_of(
    sequences: AdapterSequences, first: int, last: int, per_sequence: bool, loss_weights: Sequence[float] | None = None
) -> Iterator[Segment]:
    """Sequences `first` to `last - 1` as one segment, or each as its own. loss_weights: per sequence, equal without
    `per_sequence`."""
    step = 1 if per_sequence else last - first
    for at in range(first, last, step):
        dropout = None if sequences.dropout is None else replace(sequences.dropout, first=sequences.dropout.first + at)
        yield Segment(
            sequences.slot, sequences.examples[at : at + step], 1.0 if loss_weights is None else loss_weights[at], dropout
        )
