"""The executor's own step over consecutive batches: packing, upload, tables, forward, backward, losses, clip, AdamW.

Knows worker.replicas.packed_step and jobs as a replica holds them; on a GPU each step is launched before the losses of the
last one are read, as there where steps take up to a quarter of a second. Midway one job attaches and one detaches. Times are
wall clock from one step's losses to the next one's, with the device's idle time included.
"""

import time
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from benchmarks.llama_shapes import RANKS, Rows
from contract.job_config import JobConfig
from contract.job_schedule import JobSchedule
from contract.task_spec import TaskSpec
from worker.data import dataset as sets
from worker.model.arena import Slot
from worker.model.cuda.batches.device_batch import FINE, token_bucket
from worker.model.cuda.device_arena import DeviceArena
from worker.model.cuda.device_trainer import DeviceTrainer
from worker.model.plain.trainer import Trainer
from worker.policy.job_record import JobKey
from worker.replicas.packed_step import Launched, launch
from worker.replicas.step_in_progress import StepInProgress
from worker.replicas.training_job import JobStep, TrainingJob

STEPS = 64
WARMUP = 96  # steps, after which the common buckets are captured
BUDGET = 1 << 16  # tokens of a micro-batch: large enough for a whole step

compiled: list[str] = []


def count_compilations(*_: Any, **found: Any) -> None:
    """Triton's hook, called once per compiled kernel."""
    compiled.append(str(found.get("repr", "")))


def job_steps(trainer: Trainer, rows: Rows, batch: int, adapters: int) -> list[JobStep]:
    """The first steps of jobs of ranks 16, 32, 64 in turn over the same rows, each in its own order, with non-zero B."""
    data = sets.DataSet(sets.TokenRows(rows.all()), sets.TokenRows(rows.take(1)), 1, 0, 0, 0)
    spec = TaskSpec.model_validate(
        {
            "base_model": "random",
            "dataset": {"file_id": "gsm8k"},
            "search_space": {"learning_rate": [1e-4]},
            "training": {"epochs": 100},
        }
    )
    return [_first(trainer, data, spec, batch, index) for index in range(adapters)]


def _first(trainer: Trainer, data: sets.DataSet, spec: TaskSpec, batch: int, index: int) -> JobStep:
    rank = RANKS[index % len(RANKS)]
    config = JobConfig(learning_rate=1e-4, rank=rank, alpha=2.0 * rank, batch_size=batch, seed=index)
    total = JobSchedule.of(spec, config, len(data.train)).total_steps
    job = TrainingJob(JobKey("gsm8k", index), config, data, total, spec.training.max_grad_norm)
    return JobStep(job, _attached(trainer, job), 0)


def _attached(trainer: Trainer, job: TrainingJob) -> Slot:
    slot = trainer.arena.attach(job.config.rank, job.config.alpha)
    trainer.arena.master[slot.used].normal_(std=0.02)
    if isinstance(trainer.arena, DeviceArena):
        trainer.arena.touched(slot)
    return slot


def consecutive_steps(
    trainer: Trainer, rows: Rows, batch: int, adapters: int, steps: int = STEPS, warmup: int = WARMUP
) -> dict[str, Any]:
    """Optimizer steps of all jobs, one after another; midway one adapter leaves and another takes its place.

    warmup: steps before the measured ones.
    """
    due = job_steps(trainer, rows, batch, adapters)
    _, due = _timed(trainer, due, warmup)
    _settle()
    compiled.clear()
    times, tokens, labels, tail = list[float](), 0, 0, 0
    for half in (steps // 2, steps - steps // 2):
        first = due
        ms, due = _timed(trainer, first, half)
        times += ms
        for number in range(half):
            picked = [one.job.data.train.sequences[row] for one in first for row in one.job.order.batch(one.number + number)]
            own = sum(example.length for example in picked)
            tokens, labels = tokens + own, labels + sum(example.labels for example in picked)
            tail += token_bucket(own, trainer.grain(own) if isinstance(trainer, DeviceTrainer) else FINE) - own
        if len(times) < steps:
            trainer.arena.detach(due[3].slot)
            due[3] = replace(due[3], slot=_attached(trainer, due[3].job))
    _settle()
    each = sorted(times)
    return {
        "what": "the executor's step, consecutive batches", "batch": batch, "adapters": adapters, "steps": steps,
        "warmup": warmup, "step_ms": each[steps // 2], "least_ms": each[0], "most_ms": each[-1],
        "tokens_per_step": tokens / steps, "epochs": steps * batch / len(due[0].job.data.train),
        "label_fraction": labels / tokens, "tail_fraction": tail / tokens, "compilations": len(compiled),
        "tokens_per_s": tokens / float(np.sum(times)) * 1e3,
        "peak_gb": torch.cuda.max_memory_allocated() / 1e9,
    }  # fmt: skip


def _settle() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _timed(trainer: Trainer, due: list[JobStep], count: int) -> tuple[list[float], list[JobStep]]:
    """Take so many steps: the milliseconds of each, and the steps that follow."""
    times, unread, began = list[float](), list[Launched](), time.perf_counter()
    for number in range(count):
        task_step = StepInProgress([replace(one, number=one.number + number) for one in due], BUDGET)
        ahead = trainer.launches_ahead
        unread.append(launch(trainer, {task_step: None}, BUDGET, lambda: None, ahead, tuple(unread)))
        while len(unread) > (ahead and number + 1 < count):
            unread.pop(0).read()
            times.append((time.perf_counter() - began) * 1e3)
            began = time.perf_counter()
    return times, [replace(one, number=one.number + count) for one in due]
