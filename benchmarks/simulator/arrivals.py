"""Workloads: tasks drawn from seeded distributions, or read from a trace. Knows no policy and no fleet.

LoRA attributes as in tLoRA 4.1: rank and batch size uniform over {2, 4, 8, 16} and {1, 2, 4, 8}, one of two bases.
"""

import csv
import gzip
from dataclasses import dataclass, replace
from math import log, sqrt
from pathlib import Path
from random import Random

TRACES = Path(__file__).parent / "traces"
NODE_GPUS = 8  # a task's GPUs lie within one node; wider jobs of a trace are capped to it
_GPUS, _ODDS = (1, 2, 4, 8), (0.5, 0.2, 0.2, 0.1)
_SHRINKS = 0.3  # the mean of uniform 0.2 to 0.4
_MEAN, _DEVIATION = 372.6 * 60, 612.9 * 60  # seconds, of Philly's durations


@dataclass(frozen=True)
class Arrival:
    """A task with its true values. `worst` is its seconds if no job exits early, `true` its real duration."""

    id: str
    at: int
    gpus: int
    worst: int
    true: int
    priority: int = 1
    tenant: str = ""
    rank: int = 8
    batch_size: int = 4
    base: str = "llama-3-8b"
    deadline: int | None = None  # in seconds of the run
    max_gpus: int | None = None  # the widest allowed, each doubling 1.8 times as fast


def closed(count: int, seed: int, minute: int = 1) -> list[Arrival]:
    """`count` tasks at 0 with uniform durations of 0.4 to 1.6 times the mean ("tight"), in units of 60 / `minute` seconds."""
    draw = Random(seed)
    tasks = []
    for at in range(count):
        seconds = max(1, round(_MEAN / 60 * minute * draw.uniform(0.4, 1.6)))
        tasks.append(Arrival(f"t{at}", 0, draw.choices(_GPUS, _ODDS)[0], seconds, seconds))
    return tasks


def eleven(seed: int) -> list[Arrival]:
    """ALTO's instance (figure 12): 2 tasks of a 70B base on 4 GPUs, 3 of 32B on 2, 6 of 7-8B on 1; durations in minutes."""
    draw = Random(seed)
    tasks = []
    for at, gpus in enumerate((4, 4, 2, 2, 2, 1, 1, 1, 1, 1, 1)):
        worst = max(1, round(_MEAN / 60 * draw.uniform(0.4, 1.6)))
        tasks.append(Arrival(f"t{at}", 0, gpus, worst, max(1, round(worst * draw.uniform(0.17, 0.28)))))
    return tasks


def rolling(count: int, gpus: int, load: float, seed: int, bursts: bool = False) -> list[Arrival]:
    """Poisson arrivals, optionally in bursts of 20, of log-normal tasks whose true durations are 20 to 40 % of the worst.

    `load` is the true GPU seconds that arrive per second, divided by `gpus`.
    """
    draw = Random(seed)
    spread = sqrt(log(1 + (_DEVIATION / _MEAN) ** 2))
    mean_gpus = sum(g * p for g, p in zip(_GPUS, _ODDS, strict=True))
    gap = _MEAN * _SHRINKS * mean_gpus / (gpus * load)
    now, tasks = 0.0, []
    for at in range(count):
        if not bursts or at % 20 == 0:
            now += draw.expovariate(1 / (gap * (20 if bursts else 1)))
        worst = max(60, round(draw.lognormvariate(log(_MEAN) - spread**2 / 2, spread)))
        task = Arrival(
            id=f"t{at:05}",
            at=round(now),
            gpus=draw.choices(_GPUS, _ODDS)[0],
            worst=worst,
            true=max(30, round(worst * draw.uniform(0.2, 0.4))),
            priority=draw.choice((1, 2, 4)),
        )
        tasks.append(_with_lora(task, draw))
    return tasks


def trace(path: Path, seed: int, *, scale: float = 1.0, cap: int = 86400, limit: int | None = None) -> list[Arrival]:
    """A trace file: columns submit_s, duration_s, gpus, tenant. `scale` compresses arrival times; `cap` bounds durations.

    The recorded duration counts as the true one, at 20 to 40 % of a worst case, which traces do not record.
    """
    draw = Random(seed)
    tasks = []
    with gzip.open(path, "rt", newline="") if path.suffix == ".gz" else path.open(newline="") as lines:
        for at, row in enumerate(csv.DictReader(lines)):
            true = min(cap, max(30, round(float(row["duration_s"]))))
            gpus = 1 << (min(NODE_GPUS, int(row["gpus"])) - 1).bit_length()
            moment = round(float(row["submit_s"]) / scale)
            task = Arrival(f"t{at:05}", moment, gpus, round(true / draw.uniform(0.2, 0.4)), true, tenant=row["tenant"])
            tasks.append(_with_lora(task, draw))
    return tasks[:limit]


def largest_tenants(tasks: list[Arrival], count: int) -> list[Arrival]:
    """The tasks of the `count` tenants with the most GPU seconds."""
    size: dict[str, int] = {}
    for task in tasks:
        size[task.tenant] = size.get(task.tenant, 0) + task.gpus * task.true
    chosen = sorted(size, key=lambda name: -size[name])[:count]
    return [task for task in tasks if task.tenant in chosen]


def _with_lora(task: Arrival, draw: Random) -> Arrival:
    rank, batch_size = draw.choice((2, 4, 8, 16)), draw.choice((1, 2, 4, 8))
    return replace(task, rank=rank, batch_size=batch_size, base=draw.choice(("llama-3-8b", "qwen-3-8b")))
