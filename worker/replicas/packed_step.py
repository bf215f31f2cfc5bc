"""One packed step: an optimizer step of every given job over shared micro-batches. Chooses no jobs and judges none."""

import math
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from worker.executor.job_run import JobRun
from worker.model.flat_batch import Dropout
from worker.model.plain.trainer import LossSum, Trainer
from worker.model.row_optimizer import RowUpdate
from worker.policy.packing import pack
from worker.replicas.dpo_loss import Preference, judge
from worker.replicas.validation_pass import Sequences, log_probabilities, segments_of


@dataclass
class Work:
    """Work done for one placement's jobs. A micro-batch counts for every placement in it.

    device_steps: steps of single devices, several of which may work in parallel; device_seconds: their time summed.
    """

    tokens: int = 0
    rows: int = 0
    micro_batches: int = 0
    forwards: int = 0
    device_steps: int = 0
    device_seconds: float = 0.0

    def add(self, other: "Work") -> None:
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)


@dataclass
class Stepped:
    """losses: mean nats per label of each job's batch, before its update; under dpo the pairs' mean loss.

    A job whose loss is not finite was not updated. preferences: each job's results under dpo.
    """

    losses: dict[JobRun, float]
    seconds: float
    work: dict[str, Work] = field(default_factory=lambda: defaultdict(Work))
    preferences: dict[JobRun, Preference] = field(default_factory=dict)


def step(trainer: Trainer, runs: Sequence[JobRun], budget: int, tick: Callable[[], None]) -> Stepped:
    """Train `runs` by one optimizer step each, in micro-batches of `budget` tokens. Calls `tick` after each micro-batch.

    Raises OutOfMemory where a pass finds no memory; then no job was updated, and the caller must void the gradients.
    """
    began = time.monotonic()
    places = {run: run.data.train.places(run.order.batch(run.step)) for run in runs}
    batches = {run: _sequences(run, places[run]) for run in runs}
    stepped = Stepped({}, 0.0)
    stepped.preferences = _judged(trainer, batches, places, budget, tick)
    ruined = {run for run, said in stepped.preferences.items() if not math.isfinite(said.loss)}
    weights = {run: _weights(batch, stepped.preferences.get(run)) for run, batch in batches.items()}
    sums: list[tuple[JobRun, LossSum]] = []
    for held in pack({run: batch.lengths for run, batch in batches.items() if run not in ruined}, budget):
        before, segments, owners = trainer.forwards, [], []
        for chunk in held:
            run = chunk.job
            for part in segments_of(batches[run], chunk.first, chunk.last, run in stepped.preferences, weights[run]):
                segments.append(part)
                owners.append(run)
            stepped.work[run.group].tokens += chunk.tokens
            stepped.work[run.group].rows += run.config.rank if chunk.first == 0 else 0
        recompute = any(chunk.job.activations.recompute for chunk in held)
        sums.extend(zip(owners, trainer.train(segments, recompute), strict=True))
        for group in {chunk.job.group for chunk in held}:
            stepped.work[group].micro_batches += 1
            stepped.work[group].forwards += trainer.forwards - before
        tick()
    preferred = {run: said.loss for run, said in stepped.preferences.items()}
    found = {**_means([(run, loss) for run, loss in sums if run not in preferred]), **preferred}
    stepped.losses = {run: found[run] for run in runs}
    trainer.update([_update(run) for run in runs if math.isfinite(stepped.losses[run])])
    stepped.seconds = time.monotonic() - began
    for work in stepped.work.values():
        work.device_steps, work.device_seconds = 1, stepped.seconds
    return stepped


def _sequences(run: JobRun, places: list[int]) -> Sequences:
    rows, config = run.data.train, run.config
    dropout = Dropout(config.dropout, config.seed, run.step) if config.dropout else None
    examples, lengths = [rows.sequences[place] for place in places], [rows.lengths[place] for place in places]
    return Sequences(run.slot, examples, lengths, dropout)


def _judged(
    trainer: Trainer,
    batches: Mapping[JobRun, Sequences],
    places: Mapping[JobRun, list[int]],
    budget: int,
    tick: Callable[[], None],
) -> dict[JobRun, Preference]:
    """The dpo results of the jobs' pairs before the step: a separate forward, since an answer's gradient weight depends on both
    answers. It applies the step's own dropout."""
    pairs = {run: batch for run, batch in batches.items() if run.reference is not None}
    said = {}
    for run, log_p in log_probabilities(trainer, pairs, budget, tick).items():
        assert run.reference is not None, "only jobs with a reference are under dpo"
        assert run.config.beta is not None, "the spec gives every job under dpo a beta"
        said[run] = judge(run.config.beta, log_p, [run.reference.train[place] for place in places[run]])
    return said


def _weights(batch: Sequences, said: Preference | None) -> list[float]:
    """The gradient weight of each sequence's -log p."""
    if said is not None:
        return said.weights
    return [1 / sum(example.labels for example in batch.examples)] * len(batch.examples)


def _means(sums: list[tuple[JobRun, LossSum]]) -> dict[JobRun, float]:
    """Each job's mean loss, its micro-batches added in order in double precision; one device read for all jobs."""
    if not sums:
        return {}
    totals, labels = defaultdict[JobRun, float](float), defaultdict[JobRun, int](int)
    read = torch.stack([loss.total for _, loss in sums]).tolist()
    for (run, loss), total in zip(sums, read, strict=True):
        totals[run] += total
        labels[run] += loss.labels
    return {run: totals[run] / labels[run] for run in totals}


def refusal(run: JobRun) -> str | None:
    """Why the job's next update cannot be made, whatever its gradient is; None where it can."""
    try:
        _update(run)
    except ValueError as error:
        return str(error)
    return None


def _update(run: JobRun) -> RowUpdate:
    assert run.slot is not None, "only jobs with a slot train"
    rate = run.config.rate_at(run.step, run.schedule.total_steps)
    return RowUpdate(run.slot, rate, run.config.weight_decay, run.step + 1, run.spec.training.max_grad_norm)
