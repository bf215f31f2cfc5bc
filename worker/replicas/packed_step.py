"""One packed step: an optimizer step of every given job over shared micro-batches. Chooses no jobs and stops none early.

A replica calls `launch`, and reads the losses of what it launched: on a device that works by itself after it has launched steps
that follow, so that the device seldom waits for the host. `step` is for benchmarks, which take whole steps.

A job's batch is split into pieces. A slice is the pieces of one task that enter one micro-batch; a micro-batch is one pass of
the base, over slices of several tasks (step_in_progress.py splits, policy/packing.py packs).
"""

import math
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Container, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from worker.model.plain.trainer import LossSum, Moment, OutOfMemory, StepLosses, Trainer
from worker.model.row_optimizer import RowUpdate
from worker.policy.job_record import JobKey
from worker.policy.packing import Piece, pack_pieces
from worker.policy.step_time import StepLoad
from worker.replicas.adapter_sequences import AdapterSequences, segments_of
from worker.replicas.dpo_loss import PreferenceResult, preference_loss
from worker.replicas.step_in_progress import StepInProgress
from worker.replicas.training_job import JobStep
from worker.replicas.validation_pass import log_probabilities


@dataclass
class Work:
    """Work done for one placement's jobs. A micro-batch counts for every placement in it.

    device_steps: steps of single devices, several of which may work in parallel; device_seconds: their time summed.
    """

    tokens: int = 0
    adapter_rows: int = 0
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

    A job whose loss is not finite was not updated. accuracies: the share of labels that were their logits' argmax, of each job
    that is not under dpo. preferences: each job's results under dpo.
    """

    losses: dict[JobKey, float]
    seconds: float
    accuracies: dict[JobKey, float] = field(default_factory=dict)
    work: dict[str, Work] = field(default_factory=lambda: defaultdict(Work))
    preferences: dict[JobKey, PreferenceResult] = field(default_factory=dict)
    passes: int = 0  # training passes of the base
    preferring: dict[str, int] = field(default_factory=dict)  # tokens whose preferences were computed first, by placement
    preference_seconds: float = 0.0  # of `seconds`
    grew: bool = False  # whether micro-batches may be longer from now on

    @property
    def load(self) -> StepLoad:
        """What the step's time is learned by."""
        tokens, rows = (sum(getattr(work, name) for work in self.work.values()) for name in ("tokens", "adapter_rows"))
        return StepLoad(self.passes, tokens, rows, len(self.losses))


@dataclass
class Launched:
    """A step that a trainer was given and whose losses nobody has read yet.

    stepped: all that is known before they are. began: by time.monotonic. jobs: those that took their step, in order. sums: the
    losses of their passes. preferred: the mean losses of those under dpo. read_values: waits for the totals of all sums,
    followed by their hits, and returns them. on_device: when the device begins and ends it, where others are launched beside
    it; what the device then does between its launch and its reading is not its own alone.
    """

    stepped: Stepped
    began: float
    jobs: Sequence[JobKey] = ()
    sums: Sequence[tuple[JobKey, LossSum]] = ()
    preferred: Mapping[JobKey, float] = field(default_factory=dict)
    read_values: Callable[[], list[float]] = list
    on_device: tuple[Moment, Moment] | None = None

    def read(self, left_out: Container[JobKey] = ()) -> Stepped:
        """Wait until it is over. left_out: jobs that took no step here after all (see `launch`)."""
        values, count, stepped = self.read_values(), len(self.sums), self.stepped
        losses = {**_means(self.sums, values[:count]), **self.preferred}
        accuracies = _means(self.sums, values[count:])
        stepped.losses = {key: losses[key] for key in self.jobs if key not in left_out}
        stepped.accuracies = {key: accuracies[key] for key in stepped.losses if key in accuracies}
        if self.on_device is None:
            stepped.seconds = time.monotonic() - self.began
        else:
            stepped.seconds = self.on_device[1].seconds_since(self.on_device[0])
        for work in stepped.work.values():
            work.device_steps, work.device_seconds = 1, stepped.seconds
        return stepped


def step(trainer: Trainer, steps: Sequence[JobStep], budget: int, on_progress: Callable[[], None]) -> Stepped:
    """Train these jobs by one whole optimizer step each, in micro-batches of `budget` tokens: see `launch`. Only
    benchmarks call this."""
    return launch(trainer, {StepInProgress(steps, budget): None}, budget, on_progress).read()


def launch(
    trainer: Trainer,
    steps_in_progress: Mapping[StepInProgress, int | None],
    budget: int,
    on_progress: Callable[[], None],
    ahead: bool = False,
    unread: Collection[Launched] = (),
) -> Launched:
    """Run the next so many slices of each task's step (None: all that is left of it) in micro-batches of `budget` tokens, and
    update the jobs whose batches are through. Calls `on_progress` after each micro-batch. On a sharded base all ranks come,
    with steps or without.

    ahead: steps that follow may be launched before this one is read. unread: those before it that are not read yet. A job whose
    loss in any of them turns out not to be finite is not updated here either, and has taken no step: its tokens count as work
    that was done. No job is under dpo then.

    Raises OutOfMemory where a pass finds no memory; then no job was updated, all these steps are void, and the caller must
    void the gradients of the others, too (the trainer voided those of the pass).
    """
    began, started = time.monotonic(), trainer.moment() if ahead else None
    begun_now = [task_step for task_step in steps_in_progress if task_step.preferences is None]
    preferring = _compute_preferences(trainer, begun_now, budget, on_progress)
    stepped, task_step_of, loss_weights, taken = (
        Stepped({}, 0.0, preferring=preferring, preference_seconds=time.monotonic() - began if preferring else 0.0),
        dict[JobKey, StepInProgress](),
        dict[JobKey, list[float]](),
        [],
    )
    for task_step, slices in steps_in_progress.items():
        for key, pieces in task_step.next_pieces(slices).items():
            preference = task_step.preference(key)
            task_step_of[key], loss_weights[key] = task_step, _loss_weights(task_step.batches[key], preference)
            if preference is None or math.isfinite(preference.loss):
                taken.append(pieces)
    first = trainer.forwards
    micro_batches = pack_pieces(taken, budget)
    with trainer.backbone.gathers.together(len(micro_batches), True, on_progress):
        for micro_batch in micro_batches:
            _run_micro_batch(trainer, micro_batch, task_step_of, loss_weights, stepped)
            on_progress()
    stepped.passes = trainer.forwards - first
    done = [(task_step, job_step) for task_step in steps_in_progress for job_step in task_step.take_completed()]
    for task_step, job_step in done:
        preference = task_step.preference(job_step.job.key)
        if preference is not None:
            stepped.preferences[job_step.job.key] = preference
    preferred = {key: preference.loss for key, preference in stepped.preferences.items()}
    sums = [
        (job_step.job.key, loss)
        for task_step, job_step in done
        if job_step.job.key not in preferred
        for loss in task_step.sums[job_step.job.key]
    ]
    steps = [job_step for _, job_step in done]
    read_values = _update(trainer, steps, sums, preferred, [pair for launched in unread for pair in launched.sums])
    on_device = (started, trainer.moment()) if started is not None else None
    return Launched(stepped, began, [one.job.key for one in steps], sums, preferred, read_values, on_device)


def _run_micro_batch(
    trainer: Trainer,
    micro_batch: Sequence[Piece[JobKey]],
    task_step_of: Mapping[JobKey, StepInProgress],
    loss_weights: Mapping[JobKey, list[float]],
    stepped: Stepped,
) -> None:
    """Forward and backward of one micro-batch; adds its losses to its jobs' steps. task_step_of: each job's task's step."""
    before, segments, segment_keys, recompute = trainer.forwards, [], [], False
    for piece in micro_batch:
        key, task_step = piece.job, task_step_of[piece.job]
        job = task_step.steps[key].job
        per_sequence = task_step.preference(key) is not None
        for part in segments_of(task_step.batches[key], piece.first, piece.last, per_sequence, loss_weights[key]):
            segments.append(part)
            segment_keys.append(key)
        stepped.work[key.placement].tokens += piece.tokens
        stepped.work[key.placement].adapter_rows += job.config.rank if piece.first == 0 else 0
        recompute |= job.activations.recompute
    placements = {piece.job.placement for piece in micro_batch}
    shared = len(placements) > 1
    try:
        losses = trainer.train(segments, recompute, shared)
    except OutOfMemory as error:
        error.sole_placement = micro_batch[0].job.placement if len(micro_batch) == 1 else None
        raise
    for key, loss in zip(segment_keys, losses, strict=True):
        task_step_of[key].sums[key].append(loss)
    for placement in placements:
        stepped.work[placement].micro_batches += 1
        stepped.work[placement].forwards += trainer.forwards - before


def _compute_preferences(
    trainer: Trainer, steps_in_progress: Sequence[StepInProgress], budget: int, on_progress: Callable[[], None]
) -> dict[str, int]:
    """Preferences of the pairs of jobs under dpo, before their steps: a separate forward, since an answer's loss weight
    depends on both answers. It applies the step's own dropout. Returns its tokens by placement."""
    pairs = {
        key: task_step
        for task_step in steps_in_progress
        for key, job_step in task_step.steps.items()
        if job_step.job.reference is not None
    }
    read = log_probabilities(trainer, {key: task_step.batches[key] for key, task_step in pairs.items()}, budget, on_progress)
    for task_step in steps_in_progress:
        task_step.preferences = {}
    for key, task_step in pairs.items():
        job = task_step.steps[key].job
        assert job.reference is not None, "only jobs with a reference are under dpo"
        assert job.config.beta is not None, "the spec gives every job under dpo a beta"
        reference = [job.reference.train[place] for place in task_step.places[key]]
        assert task_step.preferences is not None
        task_step.preferences[key] = preference_loss(job.config.beta, read[key], reference)
    tokens = defaultdict[str, int](int)
    for key, task_step in pairs.items():
        tokens[key.placement] += sum(task_step.batches[key].lengths)
    return dict(tokens)


def _loss_weights(batch: AdapterSequences, preference: PreferenceResult | None) -> list[float]:
    """The loss weight of each sequence: see Segment."""
    if preference is not None:
        return preference.loss_weights
    return [1 / sum(example.labels for example in batch.examples)] * len(batch.examples)


def _update(
    trainer: Trainer,
    done: Sequence[JobStep],
    sums: Sequence[tuple[JobKey, LossSum]],
    preferred: Mapping[JobKey, float],
    unread: Sequence[tuple[JobKey, LossSum]],
) -> Callable[[], list[float]]:
    """Update these jobs but those with a loss that is not finite, in this step or among `unread`, those of steps before.
    Returns what waits for the totals of `sums`, followed by their hits.

    The update is queued before losses are read, and the device finds out whose are not finite, so it never waits for the host.
    """
    due = [one for one in done if math.isfinite(preferred.get(one.job.key, 0.0))]
    if not sums:
        assert not (unread and due), "under dpo no step is launched ahead"
        trainer.update([_row_update(one) for one in due])
        return list
    place = {one.job.key: at for at, one in enumerate(due)}
    deciding = [*sums, *((key, loss) for key, loss in unread if key in place)]
    totals = torch.stack([loss.total for _, loss in deciding])
    read = trainer.read_later(torch.cat([totals[: len(sums)], torch.stack([loss.hits for _, loss in sums])]))
    trainer.update([_row_update(one) for one in due], StepLosses(totals, tuple(place[key] for key, _ in deciding)))
    return read


def _means(sums: Sequence[tuple[JobKey, LossSum]], read: Sequence[float]) -> dict[JobKey, float]:
    """Each job's mean per label, its micro-batches added in order in double precision. read: a total of each sum."""
    totals, labels = defaultdict[JobKey, float](float), defaultdict[JobKey, int](int)
    for (key, loss), total in zip(sums, read, strict=True):
        totals[key] += total
        labels[key] += loss.labels
    return {key: totals[key] / labels[key] for key in totals}


def update_refusal(job_step: JobStep) -> str | None:
    """Why the job's update cannot be made, whatever its gradient is; None where it can."""
    try:
        _row_update(job_step)
    except ValueError as error:
        return str(error)
    return None


def _row_update(job_step: JobStep) -> RowUpdate:
    config = job_step.job.config
    rate = config.rate_at(job_step.number, job_step.job.total_steps)
    return RowUpdate(job_step.slot, rate, config.weight_decay, job_step.number + 1, job_step.job.max_grad_norm)
