"""Trains a sweep for real, with all of a task's jobs packed on one base as the executor would, and records its curves.

Knows trainer, data and driver. Knows no service.
"""

import math
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from torch import Tensor

from benchmarks.quality.base_set_pairs import RowSet
from benchmarks.quality.early_exit_driver import EarlyExitDriver
from benchmarks.quality.recorded_sweep import Curve, Sweep, Totals
from benchmarks.quality.set_rows import rows_of
from contract.job_schedule import JobSchedule
from contract.row_scores import RowScores
from contract.task_spec import TaskSpec
from worker.adapters.job_checkpoint import mean_of
from worker.data.dataset import DataSet, TokenRows, load
from worker.data.token_cache import loose_stream
from worker.data.token_stream import StreamView
from worker.data.tokenising.file_tokeniser import Reading
from worker.model.arena import AdapterState, Arena, Slot, rows_for
from worker.policy.early_exit.policy_interface import smooth
from worker.policy.job_record import JobKey
from worker.replicas.adapter_sequences import AdapterSequences
from worker.replicas.base_loader import DeviceBase
from worker.replicas.dpo_loss import pair_loss
from worker.replicas.dpo_reference import Reference
from worker.replicas.packed_step import step
from worker.replicas.training_job import JobStep, TrainingJob
from worker.replicas.validation_pass import EvaluationRequest, evaluate, log_probabilities

_AT_ONCE = 12  # jobs evaluated in one call, which bounds the results that it holds
_STEP_TOKENS = {"cpu": 4096, "cuda": 65536}  # of a pass

Tick = Callable[[], None]  # called again and again meanwhile; may raise OutOfTime
Texts = Callable[[TokenRows, Slot | None], RowScores]  # 1 minus a metric's results on validation rows; None: the base's


class OutOfTime(Exception):
    """The deadline passed before the sweep was done."""


@dataclass
class _Run:
    """A job in training."""

    job: TrainingJob
    slot: Slot
    step: int = 0
    ema: float | None = None
    lowest: dict[int, Tensor] = field(default_factory=dict)  # the weights after the steps of its lowest losses

    @property
    def index(self) -> int:
        return self.job.key.job


@dataclass(frozen=True)
class Ground:
    """What a sweep trains and is measured on.

    test: rows that neither training nor selection reads; rows: the validation rows, then those; budget: tokens of a pass;
    reference: under dpo.
    """

    base: DeviceBase
    spec: TaskSpec
    data: DataSet
    test: TokenRows
    rows: TokenRows
    budget: int
    reference: Reference | None


def ground_of(
    base: DeviceBase, spec: TaskSpec, row_set: RowSet, sets: Path, most: int | None, tick: Tick, all_held_out: bool = False
) -> Ground:
    """Load the set's rows. sets: the folder of the sets; most: rows of the set at most; all_held_out: validate on every row
    that the split holds out, also where the spec bounds the share of evaluations. Raises OSError if the set is missing."""
    early_exit = spec.early_exit.model_copy(update={"max_evaluation_share": None}) if all_held_out else spec.early_exit
    with tempfile.TemporaryDirectory() as folder:
        task_file, test_file = rows_of(row_set, sets, Path(folder), most)
        data = load(spec.model_copy(update={"early_exit": early_exit}), task_file, None, base.reader)
        stream = loose_stream(test_file, Reading(base.reader, spec.objective, spec.training.max_seq_len), tick)
    test = TokenRows(StreamView(stream, np.arange(stream.rows)), stream.per_row)
    rows, budget = (
        TokenRows([*data.validation.sequences, *test.sequences], test.per_row),
        _STEP_TOKENS[base.trainer.backbone.device.type],
    )
    reference = None
    if spec.objective.type == "dpo":
        parts = {"train": data.train, "held": rows}
        wanted = {name: AdapterSequences(None, part.sequences, part.lengths) for name, part in parts.items()}
        found = log_probabilities(base.trainer, wanted, budget, tick)
        reference = Reference(found["train"], found["held"])
    return Ground(base, spec, data, test, rows, budget, reference)


def blank(ground: Ground, pair: str, policy: str, seed: int, tick: Tick) -> Sweep:
    """The sweep before its first step, with the base's own losses."""
    spec, data, rows = ground.spec, ground.data, ground.rows
    dpo = ground.reference is not None
    weights = [1] * len(rows) if dpo else [example.labels for example in rows.sequences]
    if dpo:
        alone = [pair_loss(0.0)] * len(rows)
    else:
        ((_, found),) = evaluate(ground.base.trainer, {0: EvaluationRequest(None, rows, scored="loss")}, ground.budget, tick)
        alone = found.scores.totals if found.scores is not None else [math.nan] * len(rows)
    per_row = np.array(rows.lengths).reshape(len(rows), rows.per_row).sum(axis=1)
    curves = [
        Curve(job, config.model_dump(mode="json"), JobSchedule.of(spec, config, len(data.train)).total_steps)
        for job, config in enumerate(spec.jobs())
    ]
    return Sweep(
        pair=pair,
        policy=policy,
        seed=seed,
        train_rows=len(data.train),
        tokens_per_row=data.train.mean_length,
        validation_rows=len(data.validation),
        weights=weights,
        lengths=[int(tokens) for tokens in per_row],
        base=alone,
        curves=curves,
    )


def train(
    ground: Ground,
    sweep: Sweep,
    driver: EarlyExitDriver,
    watched: Mapping[int, Iterable[int]],
    tick: Tick,
    evaluated: Callable[[int, Slot], None] = lambda job, slot: None,
    texts: Texts | None = None,
) -> None:
    """Train the driver's jobs as it decides, and fill `sweep`. `watched`: extra steps after which a job is evaluated.

    `evaluated` is called after each evaluation that the driver was told of, and where a job's adapter has become a mean.
    `texts`: of a spec whose cut goes by a metric. Raises OutOfTime from `tick`.
    """
    began, spec = time.monotonic(), ground.spec
    trainer, runs = ground.base.trainer, _attach(ground)
    curves = {curve.job: curve for curve in sweep.curves}
    also = {job: set(steps) for job, steps in watched.items()}
    if texts is not None:
        driver.base_texts = texts(ground.data.validation, None)
    while active := [runs[entrant.index] for entrant in driver.active]:
        stepped = step(trainer, [JobStep(run.job, run.slot, run.step) for run in active], ground.budget, tick)
        sweep.tokens += sum(work.tokens for work in stepped.work.values())
        for run in active:
            entrant, loss = driver.entrants[run.index], stepped.losses[run.job.key]
            entrant.step += 1
            if math.isfinite(loss):
                run.step, run.ema = run.step + 1, smooth(run.ema, loss, spec.early_exit.ema_alpha)
            else:
                curves[run.index].broken_at = entrant.step
                driver.end(entrant, "diverging")
        due = [run for run in active if driver.entrants[run.index].reason is None]
        due = [run for run in due if driver.entrants[run.index].due or run.step in also.get(run.index, ())]
        for first in range(0, len(due), _AT_ONCE):
            _examine(ground, due[first : first + _AT_ONCE], curves, tick)
        for run in due:
            if driver.entrants[run.index].due:
                driver.evaluated(run.index, *curves[run.index].at(run.step))
                _keep_lowest(trainer.arena, run, driver.entrants[run.index].lowest)
                evaluated(run.index, run.slot)
        for entrant in driver.texts_due:
            assert texts is not None, "a cut by a metric wants texts"
            entrant.boundary_texts = texts(ground.data.validation, runs[entrant.index].slot)
        driver.decide_ranks()
        for run in [run for run in runs.values() if driver.entrants[run.index].ends_in_a_mean]:
            curves[run.index].mean = mean = _evaluated_mean(ground, run, tick)
            driver.averaged(run.index, mean)
            if driver.entrants[run.index].plain_totals is not None:
                evaluated(run.index, run.slot)
        for run in list(runs.values()):
            if driver.entrants[run.index].reason is not None:
                trainer.arena.detach(runs.pop(run.index).slot)
    sweep.seconds = time.monotonic() - began
    sweep.reasons = {job: entrant.reason or "" for job, entrant in driver.entrants.items()}
    sweep.samples = {job: entrant.step * entrant.batch_size for job, entrant in driver.entrants.items()}


def _attach(ground: Ground) -> dict[int, _Run]:
    spec, trainer, data = ground.spec, ground.base.trainer, ground.data
    configs, arena = spec.jobs(), trainer.arena
    arena.grow(max(arena.rows, arena.rows_used + sum(rows_for(config.rank) for config in configs)))
    runs = {}
    for number, config in enumerate(configs):
        total, clip = JobSchedule.of(spec, config, len(data.train)).total_steps, spec.training.max_grad_norm
        slot = arena.attach(config.rank, config.plain_alpha)
        trainer.init_adapter(slot, config.seed, config.target_modules)
        job = TrainingJob(JobKey("sweep", number), config, data, total, clip, reference=ground.reference)
        runs[number] = _Run(job, slot)
    return runs


def _keep_lowest(arena: Arena, run: _Run, lowest: Sequence[tuple[float, int]]) -> None:
    steps = {step for _, step in lowest}
    run.lowest = {step: weights for step, weights in run.lowest.items() if step in steps}
    if run.step in steps:
        run.lowest[run.step] = arena.master[run.slot.used].clone()


def _evaluated_mean(ground: Ground, run: _Run, tick: Tick) -> Totals:
    """What the mean of its best weights scores, which the job's rows hold from then on."""
    mean = mean_of([weights.cpu() for weights in run.lowest.values()])
    assert mean is not None, "weights are kept"
    ground.base.trainer.arena.restore(run.slot, AdapterState(mean))
    return _totals(ground, [run], tick)[run.index]


def _examine(ground: Ground, due: list[_Run], curves: Mapping[int, Curve], tick: Tick) -> None:
    found = _totals(ground, due, tick)
    for run in due:
        curve = curves[run.index]
        assert run.ema is not None, "a job is evaluated after a step"
        curve.steps.append(run.step)
        curve.ema.append(run.ema)
        curve.totals.append(found[run.index])


def _totals(ground: Ground, due: list[_Run], tick: Tick) -> dict[int, Totals]:
    reference = ground.reference.validation if ground.reference is not None else ()
    wanted = {run.index: EvaluationRequest(run.slot, ground.rows, run.job.config.beta, reference, scored="loss") for run in due}
    scored = {job: result.scores for job, result in evaluate(ground.base.trainer, wanted, ground.budget, tick)}
    none = [math.nan] * len(ground.rows)
    return {job: np.array(scores.totals if scores is not None else none, np.float32) for job, scores in scored.items()}
