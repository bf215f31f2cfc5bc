"""Validation losses of many jobs in one pass over the flat axis, each over its own task's held-out rows. Stops none early:
policy/early_exit/ decides that."""

from collections.abc import Callable, Generator, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import torch

from worker.data.dataset import Rows
from worker.model.arena import Slot
from worker.model.flat_batch import Dropout, Example, Segment
from worker.model.plain.trainer import LossSum, OutOfMemory, Trainer
from worker.policy.packing import lay, pieces_of
from worker.replicas.dpo_loss import preference_loss

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True)
class ValidationSubject:
    """The adapter to evaluate, or without a slot the base. Under dpo with its beta and the reference's log-probabilities of the
    rows' sequences."""

    slot: Slot | None
    rows: Rows
    beta: float | None = None
    reference: Sequence[float] = ()
    cut: int | None = None  # as of Sequences
    owner: str | None = None


@dataclass(frozen=True)
class ValidationResult:
    """loss: mean nats per label over all rows; under dpo the mean loss of the pairs, with their accuracy and margin."""

    loss: float
    tokens: int
    accuracy: float | None = None
    margin: float | None = None


@dataclass(frozen=True)
class Sequences:
    """Sequences to run with an adapter. lengths: tokens of each on the axis. dropout: of the first sequence; None: no dropout.
    cut: tokens of a piece of them, where passes of several tasks may be shorter or longer; None: of a pass. owner: their
    task."""

    slot: Slot | None
    examples: Sequence[Example]
    lengths: Sequence[int]
    dropout: Dropout | None = None
    cut: int | None = None
    owner: str | None = None


def evaluate(
    trainer: Trainer, examinees: Mapping[Key, ValidationSubject], budget: int, tick: Callable[[], None]
) -> Iterator[tuple[Key, ValidationResult]]:
    """Yield each subject's result as soon as it is known. How a subject is cut depends on it and `budget` alone."""
    for known in _evaluated(trainer, examinees, budget, tick):
        if known is not None:
            yield known


def evaluating(
    trainer: Trainer, examinees: Mapping[Key, ValidationSubject], budget: int, tick: Callable[[], None]
) -> Generator[None, None, dict[Key, ValidationResult]]:
    """As `evaluate`, pass by pass: yields after each pass, and returns the results."""
    found: dict[Key, ValidationResult] = {}
    for known in _evaluated(trainer, examinees, budget, tick):
        if known is None:
            yield
        else:
            found[known[0]] = known[1]
    return found


def log_probabilities(
    trainer: Trainer, wanted: Mapping[Key, Sequences], budget: int, tick: Callable[[], None]
) -> dict[Key, list[float]]:
    """log p of every sequence's labels, summed."""
    passes = log_probability_passes(trainer, wanted, budget, tick)
    while True:
        try:
            next(passes)
        except StopIteration as done:
            found: dict[Key, list[float]] = done.value
            return found


def log_probability_passes(
    trainer: Trainer, wanted: Mapping[Key, Sequences], budget: int, tick: Callable[[], None]
) -> Generator[None, None, dict[Key, list[float]]]:
    """As `log_probabilities`, pass by pass: yields after each pass, and returns the results."""
    found: dict[Key, list[float]] = {}
    for known in _read(trainer, wanted, set(wanted), budget, tick):
        if known is None:
            yield
        else:
            found[known[0]] = [-nll for nll in _totals(known[1])]
    return found


def _evaluated(
    trainer: Trainer, examinees: Mapping[Key, ValidationSubject], budget: int, tick: Callable[[], None]
) -> Iterator[tuple[Key, ValidationResult] | None]:
    wanted = {
        key: Sequences(who.slot, who.rows.sequences, who.rows.lengths, cut=who.cut, owner=who.owner)
        for key, who in examinees.items()
    }
    apart = {key for key, who in examinees.items() if who.beta is not None}
    for known in _read(trainer, wanted, apart, budget, tick):
        yield known if known is None else (known[0], _result(examinees[known[0]], known[1]))


def _read(
    trainer: Trainer, wanted: Mapping[Key, Sequences], apart: set[Key], budget: int, tick: Callable[[], None]
) -> Iterator[tuple[Key, list[LossSum]] | None]:
    """Each key's loss sums in the order of its sequences: one for each piece, or for keys in `apart` one for each sequence.
    None after each pass."""
    keys = list(wanted)
    pieces = [pieces_of(place, wanted[key].lengths, wanted[key].cut or budget) for place, key in enumerate(keys)]
    due = {place: len(own) for place, own in enumerate(pieces)}
    known: dict[int, dict[int, list[LossSum]]] = {place: {} for place in due}
    passes = lay(pieces, budget)
    for held in sorted(passes, key=lambda held: (held[0].job, held[0].first)):  # job by job, so that each completes early
        segments, owners = [], []
        for chunk in held:
            key = keys[chunk.job]
            for part in segments_of(wanted[key], chunk.first, chunk.last, key in apart):
                segments.append(part)
                owners.append((chunk.job, chunk.first))
        try:
            losses = trainer.evaluate(segments)
        except OutOfMemory as error:
            error.alone = wanted[keys[held[0].job]].owner if len(held) == 1 else None
            raise
        for (place, first), loss in zip(owners, losses, strict=True):
            known[place].setdefault(first, []).append(loss)
        tick()
        for place in [chunk.job for chunk in held]:
            if len(known[place]) == due[place]:
                sums = known.pop(place)
                yield keys[place], [loss for first in sorted(sums) for loss in sums[first]]
        yield None


def segments_of(
    read: Sequences, first: int, last: int, apart: bool, weights: Sequence[float] | None = None
) -> Iterator[Segment]:
    """Sequences `first` to `last - 1` as one segment, or each as its own. weights: per sequence, equal unless `apart`."""
    step = 1 if apart else last - first
    for at in range(first, last, step):
        dropout = None if read.dropout is None else replace(read.dropout, first=read.dropout.first + at)
        yield Segment(read.slot, read.examples[at : at + step], 1.0 if weights is None else weights[at], dropout)


def _totals(sums: Sequence[LossSum]) -> list[float]:
    totals: list[float] = torch.stack([loss.total for loss in sums]).tolist()
    return totals


def _result(examinee: ValidationSubject, sums: Sequence[LossSum]) -> ValidationResult:
    tokens, totals = sum(examinee.rows.lengths), _totals(sums)
    if examinee.beta is None:
        return ValidationResult(sum(totals) / sum(loss.labels for loss in sums), tokens)
    said = preference_loss(examinee.beta, [-nll for nll in totals], examinee.reference)
    return ValidationResult(said.loss, tokens, said.accuracy, said.margin)
