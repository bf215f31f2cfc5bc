"""The optimizer step that one task's jobs are taking on a replica: what is left of their batches, and their losses so far.

A task that shares an executor runs its step in slices, each of at most one micro-batch, between which others step. A job's
pieces run in the order of its batch, so its gradient is the same sum whatever runs in between. Runs nothing, chooses nothing.
"""

from collections.abc import Mapping, Sequence

from worker.model.arena import Slot
from worker.model.flat_batch import Dropout
from worker.model.plain.trainer import LossSum
from worker.policy.job_record import JobKey
from worker.policy.packing import Piece, pack, split_batch
from worker.policy.step_time import StepLoad
from worker.replicas.adapter_sequences import AdapterSequences
from worker.replicas.dpo_loss import PreferenceResult
from worker.replicas.training_job import JobStep


class StepInProgress:
    """steps: the jobs' steps under way. sums: the losses of each job's pieces so far. preferences: of
    the jobs under dpo; None before they are computed, empty where there is none."""

    def __init__(self, steps: Sequence[JobStep], budget: int) -> None:
        """budget: tokens of a piece; how a batch is split depends on it and on the batch alone."""
        self.steps = {job_step.job.key: job_step for job_step in steps}
        self.budget, self.started = budget, False
        self.places = {key: _places(job_step) for key, job_step in self.steps.items()}
        self.batches = {key: _sequences(job_step, self.places[key], budget) for key, job_step in self.steps.items()}
        self.sums: dict[JobKey, list[LossSum]] = {key: [] for key in self.steps}
        self.preferences: dict[JobKey, PreferenceResult] | None = None
        self._pieces = {key: split_batch(key, batch.lengths, budget) for key, batch in self.batches.items()}
        self._slices: list[list[Piece[JobKey]]] | None = None  # what is left, where the step runs in slices

    @property
    def done(self) -> bool:
        """Whether all its jobs have taken their steps."""
        return not self.steps

    @property
    def is_one_slice(self) -> bool:
        """Whether its next slice is the whole step."""
        return not self.started and len(self._split()) == 1

    def preference(self, key: JobKey) -> PreferenceResult | None:
        """The job's results under dpo."""
        return self.preferences.get(key) if self.preferences is not None else None

    def drop_ended(self, steps: Mapping[JobKey, JobStep]) -> None:
        """Drop the jobs that are not among these steps any more: they have ended."""
        for key in [key for key in self.steps if key not in steps]:
            self._drop(key)

    def can_resume(self, steps: Mapping[JobKey, JobStep], budget: int) -> bool:
        """Whether its steps are among these, in the same rows, split alike."""
        same = all(steps[key].number == own.number and steps[key].slot is own.slot for key, own in self.steps.items())
        return same and not self.done and budget == self.budget

    @property
    def slots(self) -> list[Slot]:
        """The rows with gradients that the step may have begun."""
        return [job_step.slot for job_step in self.steps.values()] if self.started else []

    def next_slice(self) -> StepLoad:
        """What the next slice takes."""
        pieces = self._split()[0]
        rows = sum(self.steps[piece.job].job.config.rank for piece in pieces)
        return StepLoad(1, sum(piece.tokens for piece in pieces), rows, len(pieces))

    def next_pieces(self, slices: int | None) -> dict[JobKey, list[Piece[JobKey]]]:
        """Each job's pieces in the next so many slices, or in all: they run now."""
        self.started = True
        if slices is None and self._slices is None:
            return self._pieces
        left = self._split()
        count = len(left) if slices is None else slices
        taken: dict[JobKey, list[Piece[JobKey]]] = {key: [] for key in self.steps}
        for piece in (piece for micro_batch in left[:count] for piece in micro_batch):
            taken[piece.job].append(piece)
        del left[:count]
        return {key: pieces for key, pieces in taken.items() if pieces}

    def take_completed(self) -> list[JobStep]:
        """Remove and return the jobs' steps whose pieces have all run."""
        left = {piece.job for micro_batch in self._slices or () for piece in micro_batch}
        done = [key for key in self.steps if key not in left]
        return [self.steps.pop(key) for key in done]

    def _split(self) -> list[list[Piece[JobKey]]]:
        if self._slices is None:
            self._slices = pack({key: batch.lengths for key, batch in self.batches.items() if key in self.steps}, self.budget)
        return self._slices

    def _drop(self, key: JobKey) -> None:
        del self.steps[key], self._pieces[key]
        if self._slices is not None:
            kept = ([piece for piece in micro_batch if piece.job != key] for micro_batch in self._slices)
            self._slices = [micro_batch for micro_batch in kept if micro_batch]


def _places(job_step: JobStep) -> list[int]:
    """Indexes of the sequences of the step's batch."""
    return job_step.job.data.train.places(job_step.job.order.batch(job_step.number))


def _sequences(job_step: JobStep, places: list[int], budget: int) -> AdapterSequences:
    rows, config = job_step.job.data.train, job_step.job.config
    dropout = Dropout(config.dropout, config.seed, job_step.number) if config.dropout else None
    examples, lengths = [rows.sequences[place] for place in places], [rows.lengths[place] for place in places]
    return AdapterSequences(job_step.slot, examples, lengths, dropout, budget, job_step.job.key.placement)
