"""Packs sequences into micro-batches: onto a flat token axis, under a token budget.

Pure: lengths in, places out. A job's batch is split by its own lengths alone, so its sums are taken in the same order beside
any other jobs; only then are the pieces of all jobs laid into micro-batches.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True)
class Piece(Generic[Key]):
    """Sequences `first` to `last - 1` of a job's batch, `tokens` long together."""

    job: Key
    first: int
    last: int
    tokens: int


def batch_ranges(lengths: Sequence[int], budget: int) -> list[tuple[int, int]]:
    """Split a batch into runs of sequences of at most `budget` tokens, in order. A longer sequence is a run of its own."""
    runs: list[tuple[int, int]] = []
    first, tokens = 0, 0
    for place, length in enumerate(lengths):
        if place > first and tokens + length > budget:
            runs.append((first, place))
            first, tokens = place, 0
        tokens += length
    if first < len(lengths):
        runs.append((first, len(lengths)))
    return runs


def split_batch(job: Key, lengths: Sequence[int], budget: int) -> list[Piece[Key]]:
    """A job's batch as pieces of at most `budget` tokens, in order."""
    return [Piece(job, first, last, sum(lengths[first:last])) for first, last in batch_ranges(lengths, budget)]


def pack(batches: Mapping[Key, Sequence[int]], budget: int) -> list[list[Piece[Key]]]:
    """Split every job's batch into pieces of at most `budget` tokens, and pack them into micro-batches of as many.

    `batches` maps each job to its sequences' lengths.
    """
    return pack_pieces([split_batch(job, lengths, budget) for job, lengths in batches.items()], budget)


def pack_pieces(pieces: Sequence[Sequence[Piece[Key]]], budget: int) -> list[list[Piece[Key]]]:
    """Lay every job's pieces into micro-batches of at most `budget` tokens (a single longer piece excepted).

    The order of the jobs is their order on the axis. A job's pieces lie in strictly ascending micro-batches, so its gradient is
    summed in the order of its own batch. First fit, longest piece first.
    """
    micro_batches: list[list[tuple[int, Piece[Key]]]] = []
    filled: list[int] = []
    reached = [-1] * len(pieces)  # the micro-batch that holds each job's last piece so far
    for turn in range(max(map(len, pieces), default=0)):
        due = [(place, own[turn]) for place, own in enumerate(pieces) if turn < len(own)]
        for place, piece in sorted(due, key=lambda entry: (-entry[1].tokens, entry[0])):
            after = reached[place] + 1
            room = (b for b in range(after, len(micro_batches)) if filled[b] + piece.tokens <= budget)
            chosen = next(room, len(micro_batches))
            if chosen == len(micro_batches):
                micro_batches.append([])
                filled.append(0)
            micro_batches[chosen].append((place, piece))
            filled[chosen] += piece.tokens
            reached[place] = chosen
    return [[piece for _, piece in sorted(micro_batch, key=lambda entry: entry[0])] for micro_batch in micro_batches]
