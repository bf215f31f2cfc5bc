"""Packed = solo on a GPU: how far a job's losses move with neighbours, beside how far they move with its seed."""

from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from statistics import fmean
from typing import Any

from contract.job_schedule import JobSchedule
from contract.task_spec import TaskSpec
from worker.data.dataset import DataSet, load
from worker.model.arena import Slot, rows_for
from worker.policy.job_record import JobKey
from worker.replicas.base_loader import DeviceBase
from worker.replicas.packed_step import step
from worker.replicas.training_job import JobStep, TrainingJob

STEPS = 200
BUDGET = 1 << 16
SEEDS = 3
JOB = {"learning_rate": 2e-4, "rank": 16, "batch_size": 4}
NEIGHBOURS = (
    {"learning_rate": 5e-4, "rank": 64, "batch_size": 1},
    {"learning_rate": 5e-5, "rank": 32, "batch_size": 8},
    {"learning_rate": 3e-4, "rank": 64, "batch_size": 2},
)


def spread(base: DeviceBase, rows: Path, steps: int = STEPS) -> dict[str, Any]:
    """Three jobs that differ in their seed, packed with three others; and the first job alone.

    difference: mean |packed - solo| of the first job's losses over the steps; spread: the same between two seeds.
    """
    jobs = [JOB | {"seed": seed} for seed in range(SEEDS)] + list(NEIGHBOURS)
    spec = TaskSpec.model_validate(
        {
            "base_model": "random",
            "dataset": {"file_id": "rows", "max_validation_rows": 32},
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


def _losses(base: DeviceBase, spec: TaskSpec, data: DataSet, jobs: Sequence[int], steps: int) -> list[list[float]]:
    """Each job's losses, with all jobs packed."""
    configs, arena = spec.jobs(), base.trainer.arena
    arena.grow(max(arena.rows, arena.rows_used + sum(rows_for(configs[job].rank) for job in jobs)))
    places: list[tuple[TrainingJob, Slot]] = []
    for index in jobs:
        config = configs[index]
        total = JobSchedule.of(spec, config, len(data.train)).total_steps
        slot = arena.attach(config.rank, config.plain_alpha)
        base.trainer.init_adapter(slot, config.seed, config.target_modules)
        places.append((TrainingJob(JobKey("spread", index), config, data, total, spec.training.max_grad_norm), slot))
    found: list[list[float]] = [[] for _ in places]
    for number in range(steps):
        stepped = step(base.trainer, [JobStep(job, slot, number) for job, slot in places], BUDGET, lambda: None)
        for losses, (job, _) in zip(found, places, strict=True):
            losses.append(stepped.losses[job.key])
    for _, slot in places:
        arena.detach(slot)
    return found
