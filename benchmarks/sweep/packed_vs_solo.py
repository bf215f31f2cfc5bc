"""Packed = solo on a GPU: how far a job's losses move with neighbours, beside how far they move with its seed."""

from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.sweep.live_search import HELD_OUT
from contract.task_spec import Schedule, TaskSpec
from worker.data.dataset import DataSet, load
from worker.executor.job_run import JobRun, Stage
from worker.model.arena import rows_for
from worker.replicas.base_loader import Base
from worker.replicas.packed_step import step

STEPS = 200
BUDGET = 1 << 16
SEEDS = 3
JOB = {"learning_rate": 2e-4, "rank": 16, "batch_size": 4}
NEIGHBOURS = (
    {"learning_rate": 5e-4, "rank": 64, "batch_size": 1},
    {"learning_rate": 5e-5, "rank": 32, "batch_size": 8},
    {"learning_rate": 3e-4, "rank": 64, "batch_size": 2},
)


def spread(base: Base, rows: Path, steps: int = STEPS) -> dict[str, Any]:
    """Three jobs that differ in their seed, packed with three others; and the first job alone.

    difference: mean |packed - solo| of the first job's losses over the steps; spread: the same between two seeds.
    """
    jobs = [JOB | {"seed": seed} for seed in range(SEEDS)] + list(NEIGHBOURS)
    spec = TaskSpec.model_validate(
        {
            "base_model": "random",
            "dataset": {"file_id": "rows", "max_validation_rows": HELD_OUT},
            "search_space": {"method": "list", "jobs": jobs},
            "training": {"epochs": 100, "max_seq_len": 512},
        }
    )
    data = load(spec, rows, None, base.reader)
    packed = _losses(base, spec, data, range(len(jobs)), steps)
    (solo,) = _losses(base, spec, data, [0], steps)
    difference = _distance(packed[0], solo)
    between = fmean(_distance(one, other) for one, other in combinations(packed[:SEEDS], 2))
    return {
        "what": "packed against solo, next to seeds", "steps": steps, "difference": difference, "spread": between,
        "ratio": difference / between, "first_loss": solo[0], "last_loss": solo[-1],
    }  # fmt: skip


def _distance(one: Sequence[float], other: Sequence[float]) -> float:
    return fmean(abs(x - y) for x, y in zip(one, other, strict=True))


def _losses(base: Base, spec: TaskSpec, data: DataSet, jobs: Sequence[int], steps: int) -> list[list[float]]:
    """Each job's losses, with all jobs packed."""
    configs, arena = spec.jobs(), base.trainer.arena
    arena.grow(max(arena.rows, arena.rows_used + sum(rows_for(configs[job].rank) for job in jobs)))
    runs = []
    for job in jobs:
        config = configs[job]
        schedule = Schedule.of(spec, config, len(data.train))
        run = JobRun("spread", str(job), job, config, spec, data, schedule, Stage.TRAINING, True)
        run.slot = arena.attach(config.rank, config.plain_alpha)
        base.trainer.init_adapter(run.slot, config.seed, config.target_modules)
        runs.append(run)
    found: list[list[float]] = [[] for _ in runs]
    for _ in range(steps):
        stepped = step(base.trainer, runs, BUDGET, lambda: None)
        for losses, run in zip(found, runs, strict=True):
            losses.append(stepped.losses[run])
            run.step += 1
    for run in runs:
        assert run.slot is not None
        arena.detach(run.slot)
    return found
