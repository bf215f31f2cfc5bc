"""One packed step: an optimizer step of every given job over shared micro-batches. Chooses no jobs and judges none."""

import math
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from worker.model.flat_batch import Dropout
from worker.model.plain.trainer import LossSum, Trainer
from worker.model.row_optimizer import RowUpdate
from worker.policy.job_record import JobKey
from worker.policy.packing import pack
from worker.replicas.dpo_loss import Preference, judge
from worker.replicas.training_job import JobStep
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

    losses: dict[JobKey, float]
    seconds: float
    work: dict[str, Work] = field(default_factory=lambda: defaultdict(Work))
    preferences: dict[JobKey, Preference] = field(default_factory=dict)


def step(trainer: Trainer, steps: Sequence[JobStep], budget: int, tick: Callable[[], None]) -> Stepped:
    """Train these jobs by one optimizer step each, in micro-batches of `budget` tokens. Calls `tick` after each micro-batch.

    Raises OutOfMemory where a pass finds no memory; then no job was updated, and the caller must void the gradients.
    """
    began = time.monotonic()
    jobs = {one.job.key: one.job for one in steps}
    places = {one.job.key: one.job.data.train.places(one.job.order.batch(one.step)) for one in steps}
    batches = {one.job.key: _sequences(one, places[one.job.key]) for one in steps}
    stepped = Stepped({}, 0.0)
    stepped.preferences = _judged(trainer, steps, batches, places, budget, tick)
    ruined = {key for key, said in stepped.preferences.items() if not math.isfinite(said.loss)}
    weights = {key: _weights(batch, stepped.preferences.get(key)) for key, batch in batches.items()}
    sums: list[tuple[JobKey, LossSum]] = []
    for held in pack({key: batch.lengths for key, batch in batches.items() if key not in ruined}, budget):
        before, segments, owners = trainer.forwards, [], []
        for chunk in held:
            key = chunk.job
            for part in segments_of(batches[key], chunk.first, chunk.last, key in stepped.preferences, weights[key]):
                segments.append(part)
                owners.append(key)
            stepped.work[key.placement].tokens += chunk.tokens
            stepped.work[key.placement].rows += jobs[key].config.rank if chunk.first == 0 else 0
        recompute = any(jobs[chunk.job].activations.recompute for chunk in held)
        sums.extend(zip(owners, trainer.train(segments, recompute), strict=True))
        for group in {chunk.job.placement for chunk in held}:
            stepped.work[group].micro_batches += 1
            stepped.work[group].forwards += trainer.forwards - before
        tick()
    preferred = {key: said.loss for key, said in stepped.preferences.items()}
    found = {**_means([(key, loss) for key, loss in sums if key not in preferred]), **preferred}
    stepped.losses = {key: found[key] for key in jobs}
    trainer.update([_update(one) for one in steps if math.isfinite(stepped.losses[one.job.key])])
    stepped.seconds = time.monotonic() - began
    for work in stepped.work.values():
        work.device_steps, work.device_seconds = 1, stepped.seconds
    return stepped


def _sequences(one: JobStep, places: list[int]) -> Sequences:
    rows, config = one.job.data.train, one.job.config
    dropout = Dropout(config.dropout, config.seed, one.step) if config.dropout else None
    examples, lengths = [rows.sequences[place] for place in places], [rows.lengths[place] for place in places]
    return Sequences(one.slot, examples, lengths, dropout)


def _judged(
    trainer: Trainer,
    steps: Sequence[JobStep],
    batches: Mapping[JobKey, Sequences],
    places: Mapping[JobKey, list[int]],
    budget: int,
    tick: Callable[[], None],
) -> dict[JobKey, Preference]:
    """The dpo results of the jobs' pairs before the step: a separate forward, since an answer's gradient weight depends on both
    answers. It applies the step's own dropout."""
    jobs = {one.job.key: one.job for one in steps if one.job.reference is not None}
    said = {}
    for key, log_p in log_probabilities(trainer, {key: batches[key] for key in jobs}, budget, tick).items():
        reference, beta = jobs[key].reference, jobs[key].config.beta
        assert reference is not None, "only jobs with a reference are under dpo"
        assert beta is not None, "the spec gives every job under dpo a beta"
        said[key] = judge(beta, log_p, [reference.train[place] for place in places[key]])
    return said


def _weights(batch: Sequences, said: Preference | None) -> list[float]:
    """The gradient weight of each sequence's -log p."""
    if said is not None:
        return said.weights
    return [1 / sum(example.labels for example in batch.examples)] * len(batch.examples)


def _means(sums: list[tuple[JobKey, LossSum]]) -> dict[JobKey, float]:
    """Each job's mean loss, its micro-batches added in order in double precision; one device read for all jobs."""
    if not sums:
        return {}
    totals, labels = defaultdict[JobKey, float](float), defaultdict[JobKey, int](int)
    read = torch.stack([loss.total for _, loss in sums]).tolist()
    for (key, loss), total in zip(sums, read, strict=True):
        totals[key] += total
        labels[key] += loss.labels
    return {key: totals[key] / labels[key] for key in totals}


def refusal(one: JobStep) -> str | None:
    """Why the job's update cannot be made, whatever its gradient is; None where it can."""
    try:
        _update(one)
    except ValueError as error:
        return str(error)
    return None


def _update(one: JobStep) -> RowUpdate:
    config = one.job.config
    rate = config.rate_at(one.step, one.job.total_steps)
    return RowUpdate(one.slot, rate, config.weight_decay, one.step + 1, one.job.max_grad_norm)
