"""Trains a sweep for real, with all of a task's jobs packed on one base as the executor would, and records its curves.

Knows trainer, data and referee. Knows no service.
"""

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any

from benchmarks.quality.early_exit_driver import Referee
from contract.task_spec import Schedule, TaskSpec
from worker.data.dataset import DataSet, Rows
from worker.model.arena import Slot, rows_for
from worker.policy.early_exit.policy_interface import smooth
from worker.policy.job_record import JobKey
from worker.replicas.base_loader import Base
from worker.replicas.dpo_reference import Reference
from worker.replicas.packed_step import step
from worker.replicas.training_job import JobStep, TrainingJob
from worker.replicas.validation_pass import EvaluationRequest, Sequences, evaluate, log_probabilities


@dataclass
class Curve:
    """One job's evaluations. val: losses by held-out part, by evaluation."""

    job: int
    config: dict[str, Any]
    total_steps: int
    weights: list[float]  # per part: its number of labels, or pairs
    steps: list[int] = field(default_factory=list)
    ema: list[float] = field(default_factory=list)
    val: list[list[float]] = field(default_factory=list)
    broken_at: int | None = None  # the step with a non-finite training loss

    def loss(self, place: int, parts: int) -> float:
        """The validation loss of an evaluation, over the first `parts` parts."""
        pairs = zip(self.val[place], self.weights[:parts], strict=False)
        return sum(loss * weight for loss, weight in pairs) / sum(self.weights[:parts])

    def at(self, step: int, parts: int) -> tuple[float, float]:
        """(ema, validation loss) after this step; non-finite from the step at which the job broke."""
        if self.broken_at is not None and step >= self.broken_at:
            return math.nan, math.nan
        place = self.steps.index(step)
        return self.ema[place], self.loss(place, parts)

    def best(self, parts: int, counts: Callable[[int], bool] = lambda step: True) -> tuple[float, float]:
        """The lowest loss over the first `parts` parts, and the loss over all parts at that evaluation; infinite if there is
        none.

        Only evaluations after steps for which `counts` is true.
        """
        seen = [(self.loss(place, parts), place) for place, step in enumerate(self.steps) if counts(step)]
        finite = [pair for pair in seen if math.isfinite(pair[0])]
        if not finite:
            return math.inf, math.inf
        loss, place = min(finite)
        return loss, self.loss(place, len(self.weights))


@dataclass
class Sweep:
    """A sweep's record. tokens: trained on; evaluated: tokens read by evaluations on the policy's rows."""

    pair: str
    scale: float
    policy: str
    train_rows: int
    parts: list[int]  # rows of each held-out part; a policy sees the first ones
    part_tokens: list[int]
    tokens_per_row: float
    curves: list[Curve]
    seconds: float = 0.0
    tokens: int = 0
    reasons: dict[int, str] = field(default_factory=dict)
    samples: dict[int, int] = field(default_factory=dict)

    def document(self) -> dict[str, Any]:
        return asdict(self)


class OutOfTime(Exception):
    """The deadline passed before the sweep was done."""


def split(validation: Rows, edges: Sequence[int]) -> list[Rows]:
    """The held-out rows in parts that end at these row counts (as far as there are rows), and the rest."""
    stops = sorted({min(edge, len(validation)) for edge in (*edges, len(validation))})
    rows, per_row = validation.sequences, validation.per_row
    return [Rows(rows[a * per_row : b * per_row], per_row) for a, b in pairwise([0, *stops])]


def train(
    base: Base,
    spec: TaskSpec,
    data: DataSet,
    sweep: Sweep,
    referee: Referee,
    watched: Mapping[int, Iterable[int]],
    parts: list[Rows],
    seen: int,
    budget: int,
    tick: Callable[[], None],
) -> None:
    """Train the referee's jobs as it decides, and fill `sweep`. `watched`: extra steps after which a job is evaluated; `parts`:
    the held-out rows, of which the referee sees the first `seen`.

    Raises OutOfTime from `tick`.
    """
    began = time.monotonic()
    references = _references(base, data.train, parts, budget, tick) if spec.objective.type == "dpo" else None
    runs = _attach(base, spec, data, list(referee.entrants), Reference(references[0], []) if references else None)
    curves = {curve.job: curve for curve in sweep.curves}
    also = {job: set(steps) for job, steps in watched.items()}
    while active := [runs[entrant.index] for entrant in referee.active]:
        stepped = step(base.trainer, [JobStep(run.job, run.slot, run.step) for run in active], budget, tick)
        sweep.tokens += sum(work.tokens for work in stepped.work.values())
        for run in active:
            entrant, loss = referee.entrants[run.index], stepped.losses[run.job.key]
            entrant.step += 1
            if math.isfinite(loss):
                run.step, run.ema = run.step + 1, smooth(run.ema, loss, spec.early_exit.ema_alpha)
            else:
                entrant.reason, curves[run.index].broken_at = "diverging", entrant.step
        due = [run for run in active if referee.entrants[run.index].reason is None]
        due = [run for run in due if referee.entrants[run.index].due or run.step in also.get(run.index, ())]
        _examine(base, due, curves, parts, references[1:] if references else None, budget, tick)
        for run in due:
            if referee.entrants[run.index].due:
                referee.evaluated(run.index, *curves[run.index].at(run.step, seen))
        referee.decide_ranks()
        for run in list(runs.values()):
            if referee.entrants[run.index].reason is not None:
                base.trainer.arena.detach(runs.pop(run.index).slot)
    sweep.seconds = time.monotonic() - began
    sweep.reasons = {job: entrant.reason or "" for job, entrant in referee.entrants.items()}
    sweep.samples = {job: entrant.step * entrant.batch_size for job, entrant in referee.entrants.items()}


@dataclass
class _Run:
    """A job in training."""

    job: TrainingJob
    slot: Slot
    step: int = 0
    ema: float | None = None

    @property
    def index(self) -> int:
        return self.job.key.job


def _attach(base: Base, spec: TaskSpec, data: DataSet, jobs: list[int], reference: Reference | None) -> dict[int, _Run]:
    configs, arena = spec.jobs(), base.trainer.arena
    arena.grow(max(arena.rows, arena.rows_used + sum(rows_for(configs[job].rank) for job in jobs)))
    runs = {}
    for number in jobs:
        config = configs[number]
        total, clip = Schedule.of(spec, config, len(data.train)).total_steps, spec.training.max_grad_norm
        slot = arena.attach(config.rank, config.plain_alpha)
        base.trainer.init_adapter(slot, config.seed, config.target_modules)
        runs[number] = _Run(TrainingJob(JobKey("sweep", number), config, data, total, clip, reference=reference), slot)
    return runs


def _references(base: Base, train_rows: Rows, parts: list[Rows], budget: int, tick: Callable[[], None]) -> list[list[float]]:
    """The base's log-probabilities of the training rows and of every part."""
    wanted = {place: Sequences(None, rows.sequences, rows.lengths) for place, rows in enumerate([train_rows, *parts])}
    found = log_probabilities(base.trainer, wanted, budget, tick)
    return [found[place] for place in wanted]


def _examine(
    base: Base,
    due: list[_Run],
    curves: Mapping[int, Curve],
    parts: list[Rows],
    references: list[list[float]] | None,
    budget: int,
    tick: Callable[[], None],
) -> None:
    wanted = {
        (run.index, place): EvaluationRequest(run.slot, rows, run.job.config.beta, references[place] if references else ())
        for run in due
        for place, rows in enumerate(parts)
    }
    found = dict(evaluate(base.trainer, wanted, budget, tick)) if wanted else {}
    for run in due:
        curve = curves[run.index]
        assert run.ema is not None, "a job is evaluated after a step"
        curve.steps.append(run.step)
        curve.ema.append(run.ema)
        curve.val.append([found[run.index, place].loss for place in range(len(parts))])
