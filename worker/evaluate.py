"""Validation losses of many jobs in one pass over the flat axis, each over its own task's held-out rows. Judges none."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from worker.data import DataSet
from worker.model.arena import Slot
from worker.model.batch import Segment
from worker.model.trainer import LossSum, Trainer
from worker.policy.packing import Chunk, cut, pack


@dataclass(frozen=True)
class Examinee:
    """Whose loss is wanted: an adapter's, or without a slot the base's own."""

    key: Any
    slot: Slot | None
    data: DataSet


@dataclass(frozen=True)
class Examined:
    """loss: mean nats per label over all held-out rows."""

    key: Any
    loss: float
    tokens: int


def evaluate(trainer: Trainer, examinees: Sequence[Examinee], budget: int, tick: Callable[[], None]) -> Iterator[Examined]:
    """Yield each examinee's result as soon as it is known. How its rows are cut depends on its data and `budget` alone."""
    who = {place: examinee for place, examinee in enumerate(examinees)}
    due = {place: len(cut(examinee.data.validation_lengths, budget)) for place, examinee in who.items()}
    known: dict[int, dict[int, LossSum]] = {place: {} for place in who}
    passes = pack({place: examinee.data.validation_lengths for place, examinee in who.items()}, budget)
    for held in sorted(passes, key=lambda held: (held[0].job, held[0].first)):  # what completes a job early goes first
        sums = trainer.evaluate([_segment(who[chunk.job], chunk) for chunk in held])
        for chunk, loss in zip(held, sums, strict=True):
            known[chunk.job][chunk.first] = loss
        tick()
        for place in [chunk.job for chunk in held]:
            if len(known[place]) == due[place]:
                yield _result(who[place], known.pop(place))


def _segment(examinee: Examinee, chunk: Chunk[int]) -> Segment:
    return Segment(examinee.slot, examinee.data.validation[chunk.first : chunk.last])


def _result(examinee: Examinee, sums: dict[int, LossSum]) -> Examined:
    ordered = [sums[first] for first in sorted(sums)]
    totals: list[float] = torch.stack([loss.total for loss in ordered]).tolist()
    mean = sum(totals) / sum(loss.labels for loss in ordered)
    return Examined(examinee.key, mean, sum(examinee.data.validation_lengths))
