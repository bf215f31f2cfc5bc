"""The executor's own step over consecutive batches: packing, upload, tables, forward, backward, losses, clip, AdamW.

Knows worker.replicas.packed_step and jobs as an executor holds them; midway one job attaches and one detaches. Times are wall
clock, with the device's idle time included.
"""

import time
from typing import Any

import numpy as np
import torch

from benchmarks.llama_shapes import RANKS, Rows
from contract.search_space import JobConfig
from contract.task_spec import Schedule, TaskSpec
from worker.data import dataset as sets
from worker.executor.job_run import JobRun, Stage
from worker.model.cuda.device_arena import DeviceArena
from worker.model.cuda.device_batch import token_bucket
from worker.model.plain.trainer import Trainer
from worker.replicas.packed_step import step

STEPS = 64
BUDGET = 1 << 16  # tokens of a micro-batch: large enough for a whole step

compiled: list[str] = []


def count_compilations(*_: Any, **found: Any) -> None:
    """Triton's hook, called once per compiled kernel."""
    compiled.append(str(found.get("repr", "")))


def job_runs(trainer: Trainer, rows: Rows, batch: int, adapters: int) -> list[JobRun]:
    """Jobs of ranks 16, 32, 64 in turn over the same rows, each in its own order, with non-zero B."""
    data = sets.DataSet(sets.Rows(rows.all()), sets.Rows(rows.take(1)), 0, 0)
    spec = TaskSpec.model_validate(
        {
            "base_model": "random",
            "dataset": {"file_id": "gsm8k"},
            "search_space": {"learning_rate": [1e-4]},
            "training": {"epochs": 100},
        }
    )
    return [_run(trainer, data, spec, batch, index) for index in range(adapters)]


def _run(trainer: Trainer, data: sets.DataSet, spec: TaskSpec, batch: int, index: int) -> JobRun:
    rank = RANKS[index % len(RANKS)]
    config = JobConfig(learning_rate=1e-4, rank=rank, alpha=2.0 * rank, batch_size=batch, seed=index)
    schedule = Schedule.of(spec, config, len(data.train))
    run = JobRun("gsm8k", f"job-{index}", index, config, spec, data, schedule, Stage.TRAINING, True)
    run.slot = trainer.arena.attach(rank, config.alpha)
    trainer.arena.master[run.slot.used].normal_(std=0.02)
    if isinstance(trainer.arena, DeviceArena):
        trainer.arena.touched(run.slot)
    return run


def consecutive_steps(trainer: Trainer, rows: Rows, batch: int, adapters: int, steps: int = STEPS) -> dict[str, Any]:
    """Optimizer steps of all jobs, one after another; midway one adapter leaves and another takes its place."""
    runs = job_runs(trainer, rows, batch, adapters)
    for _ in range(4):
        _once(trainer, runs)
    _settle()
    compiled.clear()
    times, tokens, labels, tail = [], 0, 0, 0
    for index in range(steps):
        if index == steps // 2:
            gone = runs[3]
            assert gone.slot is not None
            trainer.arena.detach(gone.slot)
            runs[3] = _run(trainer, gone.data, gone.spec, batch, gone.index)
            runs[3].step = gone.step
        picked = [run.data.train.sequences[row] for run in runs for row in run.order.batch(run.step)]
        began = time.perf_counter()
        _once(trainer, runs)
        times.append((time.perf_counter() - began) * 1e3)
        own = sum(example.length for example in picked)
        tokens, labels = tokens + own, labels + sum(example.labels for example in picked)
        tail += token_bucket(own) - own
    _settle()
    each = sorted(times)
    return {
        "what": "the executor's step, consecutive batches", "batch": batch, "adapters": adapters, "steps": steps,
        "step_ms": each[steps // 2], "least_ms": each[0], "most_ms": each[-1], "tokens_per_step": tokens / steps,
        "epochs": steps * batch / len(runs[0].data.train), "label_fraction": labels / tokens, "tail_fraction": tail / tokens,
        "compilations": len(compiled), "tokens_per_s": tokens / float(np.sum(times)) * 1e3,
        "peak_gb": torch.cuda.max_memory_allocated() / 1e9,
    }  # fmt: skip


def _settle() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _once(trainer: Trainer, runs: list[JobRun]) -> None:
    done = step(trainer, runs, BUDGET, lambda: None)
    for run, loss in done.losses.items():
        run.learned(loss)
