"""One packed step: an optimizer step of every given job over shared micro-batches. Chooses no jobs and judges none."""

import math
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from worker.job_run import JobRun
from worker.model.batch import Example, Segment
from worker.model.optimizer import RowUpdate
from worker.model.trainer import LossSum, Trainer
from worker.policy.packing import pack


@dataclass
class Work:
    """What a placement's jobs had done for them. A micro-batch counts for every placement in it."""

    tokens: int = 0
    micro_batches: int = 0
    forwards: int = 0


@dataclass
class Stepped:
    """losses: mean nats per label of each job's batch, before its update. A job whose loss is not finite was not updated."""

    losses: dict[JobRun, float]
    seconds: float
    work: dict[str, Work] = field(default_factory=lambda: defaultdict(Work))


def step(trainer: Trainer, runs: Sequence[JobRun], budget: int, tick: Callable[[], None]) -> Stepped:
    """Train `runs` by one optimizer step each, in micro-batches of `budget` tokens. `tick` is called after each of them."""
    began = time.monotonic()
    rows = {run: run.order.batch(run.step) for run in runs}
    batches: dict[JobRun, list[Example]] = {run: [run.data.train[row] for row in rows[run]] for run in runs}
    weights = {run: 1 / sum(example.labels for example in examples) for run, examples in batches.items()}
    lengths = {run: [run.data.train_lengths[row] for row in rows[run]] for run in runs}
    stepped = Stepped({}, 0.0)
    sums: list[tuple[JobRun, LossSum]] = []
    for held in pack(lengths, budget):
        before = trainer.forwards
        done = trainer.train([Segment(c.job.slot, batches[c.job][c.first : c.last], weights[c.job]) for c in held])
        sums.extend(zip((chunk.job for chunk in held), done, strict=True))
        for group in {chunk.job.group for chunk in held}:
            stepped.work[group].micro_batches += 1
            stepped.work[group].forwards += trainer.forwards - before
        for chunk in held:
            stepped.work[chunk.job.group].tokens += chunk.tokens
        tick()
    stepped.losses = _means(sums)
    trainer.update([_update(run) for run, loss in stepped.losses.items() if math.isfinite(loss)])
    stepped.seconds = time.monotonic() - began
    return stepped


def _means(sums: list[tuple[JobRun, LossSum]]) -> dict[JobRun, float]:
    """Each job's mean loss; its micro-batches are added in their order, in double precision, and read at once."""
    totals, labels = defaultdict[JobRun, float](float), defaultdict[JobRun, int](int)
    read = torch.stack([loss.total for _, loss in sums]).tolist()
    for (run, loss), total in zip(sums, read, strict=True):
        totals[run] += total
        labels[run] += loss.labels
    return {run: totals[run] / labels[run] for run in totals}


def _update(run: JobRun) -> RowUpdate:
    assert run.slot is not None, "only jobs with a slot train"
    training = run.spec.training
    return RowUpdate(run.slot, run.config.learning_rate, training.weight_decay, run.step + 1, training.max_grad_norm)
