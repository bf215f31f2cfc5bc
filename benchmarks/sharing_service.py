"""Tenants' OpenAI-style jobs through the whole service on one device: with joins, against exclusive placement.

    python -m benchmarks.sharing_service [--jobs 24] [--rows 150 500] [--epochs 3 5] [--load 1.5] [--shape 1b] [--device cuda]
        [--commit HASH]

Real API, planner, Postgres, Valkey and worker with their defaults and local storage; random weights. Three tenants post the
same jobs of one configuration each four times: all at once, and at Poisson times that offer `--load` times what the device does
one after another; each under exclusive placement (`isolation: dedicated`) and with joins, once the same jobs of one epoch have
compiled all kernels. Times are the service's: of a job's
completion, from its creation to its end; of its slowdown, from its placement to its end, beside the same job's when placed
exclusively. The gate: every job succeeded, and the jobs' training losses alone and in company agree as docs/NUMERICS.md has it.
"""

import argparse
import math
import random
import shutil
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from statistics import mean, median
from typing import Any

import httpx
import torch

from benchmarks.llama_shapes import LLAMA_1B, LlamaShape
from benchmarks.result_file import write_result
from benchmarks.sweep.live_search import read_rows
from benchmarks.sweep.random_base import write_base
from tests.walk.running_stack import GSM8K, RunningStack, running_stack

SHAPES = {"1b": LLAMA_1B, "toy": LlamaShape(2, 64, 128, 4, 2, 16, 8000, True)}
TENANTS = 3
TOLERANCE = 0.02  # relative mean difference of losses, as docs/NUMERICS.md has for packed and solo steps on a GPU
BOUND = 3.0  # the service's default max_slowdown
EXCLUSIVE, JOINED = "exclusive", "joined"


@dataclass(frozen=True)
class Job:
    """One OpenAI-style job: its tenant's number, the rows of its file, and its hyperparameters."""

    tenant: int
    rows: int
    epochs: int
    batch_size: int
    rate: float


@dataclass(frozen=True)
class Ran:
    """A job's times in seconds since the arm began, by the service's clock; losses: of training, by step."""

    created: float
    placed: float
    ended: float
    beside: int
    losses: list[float]

    @property
    def completion(self) -> float:
        return self.ended - self.created

    @property
    def running(self) -> float:
        return self.ended - self.placed


def drawn(count: int, rows: tuple[int, int], seed: int, epochs: tuple[int, int] = (2, 3)) -> list[Job]:
    """Jobs of sizes between these, evenly in the logarithm, for the tenants in turn, each of one of these numbers of epochs."""
    made, draw = [], random.Random(seed)
    low, high = map(math.log, rows)
    for number in range(count):
        size = round(math.exp(draw.uniform(low, high)))
        made.append(Job(number % TENANTS, size, draw.choice(epochs), draw.choice((1, 2, 4)), draw.choice((0.5, 1.0, 2.0))))
    return made


class Tenants:
    """Three tenants of a running stack, who post jobs and read what became of them."""

    def __init__(self, motet: RunningStack, base: str) -> None:
        self._base = base
        self._https = [motet.tenant(f"tenant-{number}") for number in range(TENANTS)]
        self._files: dict[tuple[int, int], str] = {}  # of each tenant and number of rows
        self._motet = motet

    def upload(self, jobs: Sequence[Job]) -> None:
        """Each job's file, before anything is measured. Rows of a tenant's jobs overlap; jobs of two tenants share no file."""
        rows = read_rows(GSM8K, max(job.rows for job in jobs))
        for tenant, count in {(job.tenant, job.rows) for job in jobs}:
            self._files[tenant, count] = self._motet.upload(rows[:count], self._https[tenant])

    def run(self, jobs: Sequence[Job], due: Sequence[float], placement: str) -> list[Ran]:
        """Post each job when it is due, and wait for all. Raises RuntimeError if one does not succeed."""
        began, posted = time.monotonic(), []
        for job, at in zip(jobs, due, strict=True):
            time.sleep(max(0.0, began + at - time.monotonic()))
            posted.append(self._post(job, placement))
        return [self._ended(job, task) for job, task in zip(jobs, posted, strict=True)]

    def _post(self, job: Job, placement: str) -> str:
        hyperparameters = {"n_epochs": job.epochs, "batch_size": job.batch_size, "learning_rate_multiplier": job.rate}
        body = {
            "model": self._base,
            "training_file": self._files[job.tenant, job.rows],
            "method": {"type": "supervised", "supervised": {"hyperparameters": hyperparameters}},
            "isolation": "dedicated" if placement == EXCLUSIVE else "shared",
        }
        answer = self._https[job.tenant].post("/openai/v1/fine_tuning/jobs", json=body)
        if answer.status_code != 200:
            raise RuntimeError(f"a job was refused: {answer.text}")
        return str(answer.json()["id"])

    def _ended(self, job: Job, posted: str) -> Ran:
        http = self._https[job.tenant]
        task_id = "task_" + posted.partition("-")[2] if posted.startswith("ftjob-") else posted
        task = self._motet.ended(task_id, 500, http)
        if task["status"] != "succeeded":
            raise RuntimeError(f"{task_id} {task['status']}: {task['error']}")
        placement = task["placement"]
        series = http.get(f"/v1/tasks/{task_id}/metrics", params={"series": "train_loss"}).json()["data"]
        values = [value for one in series if one["series"] == "train_loss" for value in one["values"]]
        beside = int(_first_beside(http, task_id))
        return Ran(*map(_seconds, (task["created_at"], placement["since"], task["ended_at"])), beside, values)


def _first_beside(http: httpx.Client, task_id: str) -> int:
    """With how many others it shared its device when it was placed."""
    changes = http.get(f"/v1/tasks/{task_id}/plan-history", params={"limit": 100}).json()["data"]
    placed = [change["said"] for change in changes if change["kind"] == "placed"]
    return max((said.get("beside") or 0 for said in placed), default=0)


def _seconds(moment: str) -> float:
    return datetime.fromisoformat(moment).timestamp()


def arrivals(alone: Sequence[float], load: float, seed: int) -> list[float]:
    """Poisson times at which the jobs offer `load` times what one device does, in order."""
    draw, at, found = random.Random(seed), 0.0, []
    for _ in alone:
        found.append(at)
        at += draw.expovariate(load / mean(alone))
    return found


def compared(exclusive: Sequence[Ran], joined: Sequence[Ran], alone: Sequence[float]) -> dict[str, Any]:
    """What joining did to the same jobs. alone: seconds of each on a device of its own."""
    slow = [one.running / own for one, own in zip(joined, alone, strict=True)]
    later = [mine.completion > theirs.completion for mine, theirs in zip(joined, exclusive, strict=True)]
    return {
        "mean_completion_s": [mean(one.completion for one in arm) for arm in (exclusive, joined)],
        "makespan_s": [max(one.ended for one in arm) - min(one.created for one in arm) for arm in (exclusive, joined)],
        "mean_completion_ratio": mean(one.completion for one in joined) / mean(one.completion for one in exclusive),
        "slowdown": [min(slow), median(slow), max(slow)],
        "later_fraction": sum(later) / len(later),
        "joined": sum(one.beside > 0 for one in joined),
        "alone_s": list(alone),
        "jobs_exclusive": _told(exclusive),
        "jobs_joined": _told(joined),
    }


def _told(arm: Sequence[Ran]) -> list[list[float]]:
    """[created, placed, ended, tasks beside it when placed] of each job; seconds since the first was created."""
    zero = min(one.created for one in arm)
    return [[round(at - zero, 2) for at in (one.created, one.placed, one.ended)] + [one.beside] for one in arm]


def gate_of(exclusive: Sequence[Ran], joined: Sequence[Ran]) -> dict[str, Any]:
    errors = []
    for one, other in zip(exclusive, joined, strict=True):
        pairs = list(zip(one.losses, other.losses, strict=True))
        errors.append(sum(abs(a - b) for a, b in pairs) / sum(a for a, _ in pairs))
    return {
        "tolerance": TOLERANCE,
        "worst_error": max(errors),
        "compared": f"training losses of {len(errors)} jobs, alone and in company",
        "passed": max(errors) < TOLERANCE,
    }


def measure(given: argparse.Namespace, motet: RunningStack) -> tuple[dict[str, float], list[dict[str, Any]], dict[str, Any]]:
    tenants = Tenants(motet, "random")
    jobs = drawn(given.jobs, tuple(given.rows), given.seed, tuple(given.epochs))
    warm = [Job(number, given.rows[0], 1, size, 1.0) for number, size in enumerate((1, 2, 4))]
    tenants.upload([*jobs, *warm])
    tenants.run(warm, [0.0] * len(warm), EXCLUSIVE)  # load the base, and teach the planner what a step takes
    burst = [0.0] * len(jobs)
    tenants.run([replace(job, epochs=1) for job in jobs], burst, JOINED)  # kernels of every size compile
    alone_arm = tenants.run(jobs, burst, EXCLUSIVE)
    alone = [one.running for one in alone_arm]
    rows = [
        {
            "arrivals": "a burst",
            "jobs": len(jobs),
            **compared(alone_arm, (in_company := tenants.run(jobs, burst, JOINED)), alone),
        }
    ]
    print(rows[-1], flush=True)
    gate = gate_of(alone_arm, in_company)
    if given.load:
        due = arrivals(alone, given.load, given.seed)
        joined = tenants.run(jobs, due, JOINED)
        exclusive = tenants.run(jobs, due, EXCLUSIVE)
        rows.append({"arrivals": f"Poisson, load {given.load:g}", "jobs": len(jobs), **compared(exclusive, joined, alone)})
        print(rows[-1], flush=True)
    figures = {
        "mean_completion_ratio": max(row["mean_completion_ratio"] for row in rows),
        "worst_slowdown": max(row["slowdown"][2] for row in rows),
        "later_fraction": max(row["later_fraction"] for row in rows),
        "bound": BOUND,
        "alone_s": median(alone),
    }
    return figures, rows, gate


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=24)
    parser.add_argument("--rows", type=int, nargs=2, default=[150, 500], help="the fewest and the most rows of a job's file")
    parser.add_argument("--epochs", type=int, nargs=2, default=[3, 5], help="one of which a job takes")
    parser.add_argument("--load", type=float, default=1.5, help="of the Poisson arrivals; 0 leaves them out")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--shape", choices=SHAPES, default="1b")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--commit", help="the commit that is measured, where there is no checkout")
    parser.add_argument("--dry-run", action="store_true", help="write no result file")
    parser.add_argument("--logs", type=Path, help="a folder that the programs' logs are copied to")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="motet-sharing-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        write_base(SHAPES[given.shape], folder / "base", torch.device(given.device))
        torch.cuda.empty_cache()
        with running_stack(folder / "state", MOTET_WORKER_DEVICE=given.device) as motet:
            motet.as_admin("POST", "/v1/admin/models", json={"name": "random", "source": str(folder / "base")})
            try:
                figures, rows, gate = measure(given, motet)
            finally:
                if given.logs is not None:
                    shutil.copytree(motet.log("worker").parent, given.logs)
    print(figures, gate, flush=True)
    if not given.dry_run:
        write_result("sharing_service", gate, figures, rows, given.commit)


if __name__ == "__main__":
    main()
