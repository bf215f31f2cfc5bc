"""One packed step: an optimizer step of every given job over shared micro-batches. Chooses no jobs and stops none early.

A replica calls `advance`; `step` is for benchmarks, which take whole steps.
"""

import math
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from worker.model.plain.trainer import LossSum, OutOfMemory, Trainer
from worker.model.row_optimizer import RowUpdate
from worker.policy.job_record import JobKey
from worker.policy.packing import Chunk, lay
from worker.policy.step_time import StepLoad
from worker.replicas.dpo_loss import Preference, preference_loss
from worker.replicas.step_in_progress import StepInProgress
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
    passes: int = 0  # training passes of the base

    @property
    def load(self) -> StepLoad:
        """What the step's time is learned by."""
        tokens, rows = (sum(getattr(work, name) for work in self.work.values()) for name in ("tokens", "rows"))
        return StepLoad(self.passes, tokens, rows, len(self.losses))


def step(trainer: Trainer, steps: Sequence[JobStep], budget: int, tick: Callable[[], None]) -> Stepped:
    """Train these jobs by one whole optimizer step each, in micro-batches of `budget` tokens: see `advance`. Only
    benchmarks call this."""
    return advance(trainer, {StepInProgress(steps, budget): None}, budget, tick)


def advance(trainer: Trainer, rounds: Mapping[StepInProgress, int | None], budget: int, tick: Callable[[], None]) -> Stepped:
    """Run the next so many slices of each round (None: all that is left of it) in micro-batches of `budget` tokens, and update
    the jobs whose batches are through. Calls `tick` after each micro-batch.

    Raises OutOfMemory where a pass finds no memory; then no job was updated, all these rounds are void, and the caller must
    void their gradients.
    """
    began = time.monotonic()
    _compute_preferences(trainer, [one for one in rounds if one.preferences is None], budget, tick)
    stepped, owner, weights, taken = Stepped({}, 0.0), dict[JobKey, StepInProgress](), dict[JobKey, list[float]](), []
    for one, slices in rounds.items():
        for key, chunks in one.take(slices).items():
            said = one.preference(key)
            owner[key], weights[key] = one, _weights(one.batches[key], said)
            if said is None or math.isfinite(said.loss):
                taken.append(chunks)
    first = trainer.forwards
    for held in lay(taken, budget):
        _run(trainer, held, owner, weights, stepped)
        tick()
    done = [(one, left) for one in rounds for left in one.finished()]
    for one, left in done:
        said = one.preference(left.job.key)
        if said is not None:
            stepped.preferences[left.job.key] = said
    preferred = {key: said.loss for key, said in stepped.preferences.items()}
    sums = [(left.job.key, loss) for one, left in done if left.job.key not in preferred for loss in one.sums[left.job.key]]
    found = {**_means(sums), **preferred}
    stepped.losses = {left.job.key: found[left.job.key] for _, left in done}
    trainer.update([_update(left) for _, left in done if math.isfinite(stepped.losses[left.job.key])])
    stepped.seconds = time.monotonic() - began
    for work in stepped.work.values():
        work.device_steps, work.device_seconds = 1, stepped.seconds
    stepped.passes = trainer.forwards - first
    return stepped


def _run(
    trainer: Trainer,
    held: Sequence[Chunk[JobKey]],
    owner: Mapping[JobKey, StepInProgress],
    weights: Mapping[JobKey, list[float]],
    stepped: Stepped,
) -> None:
    """One micro-batch."""
    before, segments, owners, recompute = trainer.forwards, [], [], False
    for chunk in held:
        key, one = chunk.job, owner[chunk.job]
        job = one.steps[key].job
        apart = one.preference(key) is not None
        for part in segments_of(one.batches[key], chunk.first, chunk.last, apart, weights[key]):
            segments.append(part)
            owners.append(key)
        stepped.work[key.placement].tokens += chunk.tokens
        stepped.work[key.placement].rows += job.config.rank if chunk.first == 0 else 0
        recompute |= job.activations.recompute
    try:
        losses = trainer.train(segments, recompute)
    except OutOfMemory as error:
        error.alone = held[0].job.placement if len(held) == 1 else None
        raise
    for key, loss in zip(owners, losses, strict=True):
        owner[key].sums[key].append(loss)
    for group in {chunk.job.placement for chunk in held}:
        stepped.work[group].micro_batches += 1
        stepped.work[group].forwards += trainer.forwards - before


def _compute_preferences(trainer: Trainer, rounds: Sequence[StepInProgress], budget: int, tick: Callable[[], None]) -> None:
    """Preferences of the pairs of jobs under dpo, before their steps: a separate forward, since an answer's gradient weight
    depends on both answers. It applies the step's own dropout."""
    pairs = {key: one for one in rounds for key, its in one.steps.items() if its.job.reference is not None}
    read = log_probabilities(trainer, {key: one.batches[key] for key, one in pairs.items()}, budget, tick)
    for one in rounds:
        one.preferences = {}
    for key, one in pairs.items():
        job = one.steps[key].job
        assert job.reference is not None, "only jobs with a reference are under dpo"
        assert job.config.beta is not None, "the spec gives every job under dpo a beta"
        reference = [job.reference.train[place] for place in one.places[key]]
        assert one.preferences is not None
        one.preferences[key] = preference_loss(job.config.beta, read[key], reference)


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
