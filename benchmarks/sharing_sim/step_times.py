"""Step times of the simulated fleet, as measured on an H200 (docs/SCHEDULING.md), and what the planner believes of them.

Measured with Llama-3.2-1B's shape and rows of about 187 tokens, whole steps at batch 2: 1 job 11.3 ms, 16 jobs 72 ms, 32 jobs
145 ms. The truth interpolates these. The planner believes a straight line through the first two, as the service would learn it.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.simulator.arrivals import Arrival
from service.scheduler.core.joins.slowdowns import Sharing
from worker.policy.deficit_round_robin import urgency

ROW_TOKENS = 187
_PER_ROW = (0.072 - 0.0113) / 30  # seconds of a row of a step, between 1 and 16 jobs of batch 2
PASS = 0.0113 - 2 * _PER_ROW  # seconds of a step without rows
_ROWS, _SECONDS = (0.0, 2.0, 32.0, 64.0), (PASS, 0.0113, 0.072, 0.145)
_BEYOND = (0.145 - 0.072) / 32
_SETTLED = 60  # rounds of urgency against speed
# bytes beside a base of 1.24B parameters and a pass, of 141 GB: an adapter row with its moments, a token's activations
_ROOM, _ADAPTER_ROW, _TOKEN = 100e9, 14e6, 1.1e6


def step_seconds(rows: float) -> float:
    """Seconds of a step of so many rows on one GPU, as measured."""
    if rows > _ROWS[-1]:
        return _SECONDS[-1] + _BEYOND * (rows - _ROWS[-1])
    return float(np.interp(rows, _ROWS, _SECONDS))


@dataclass(frozen=True)
class Part:
    """A task's part of an executor: tenant, rows of a batch on each of its GPUs, how many those are, and its bound."""

    tenant: str
    rows: int
    gpus: int
    bound: float | None = None


def speeds(parts: Sequence[Part], gpus: int) -> list[float]:
    """Seconds of progress that each part makes in a second, compared with alone, on an executor of `gpus` GPUs that step
    together: it hands out equal progress by tenant, and more to who comes near its bound, until that is settled."""
    tasks = Counter(part.tenant for part in parts)
    weights, urgent = [1.0 / tasks[part.tenant] for part in parts], [1.0] * len(parts)
    for _ in range(_SETTLED):
        found = _speeds(parts, [weight * more for weight, more in zip(weights, urgent, strict=True)], gpus)
        asked = [urgency(speed, part.bound) for speed, part in zip(found, parts, strict=True)]
        if all(abs(more - ask) < 1e-6 for more, ask in zip(urgent, asked, strict=True)):
            break
        urgent = [more ** (2 / 3) * ask ** (1 / 3) for more, ask in zip(urgent, asked, strict=True)]
    return found


def _speeds(parts: Sequence[Part], weights: Sequence[float], gpus: int) -> list[float]:
    """As `speeds`, with these weights. Steps are packed as full as the most frequent of them allows. A task that is narrower
    than the executor lies on the GPUs with the fewest rows."""
    steps = [weight / step_seconds(part.rows) for weight, part in zip(weights, parts, strict=True)]
    passes = max(steps)
    rows = [0.0] * gpus
    for often, part in sorted(zip(steps, parts, strict=True), key=lambda pair: (-pair[1].gpus, -pair[0] * pair[1].rows)):
        for at in sorted(range(gpus), key=lambda at: rows[at])[: part.gpus]:
            rows[at] += often * part.rows / passes
    round_ = passes * step_seconds(max(rows))
    return [min(1.0, weight / round_) for weight in weights]


def believed(task: Arrival, base: str, bound: float) -> Sharing:
    """What the planner believes that the task brings to a shared executor."""
    overhead = PASS / (PASS + task.batch_size * _PER_ROW)
    room = (task.rank * _ADAPTER_ROW + task.batch_size * ROW_TOKENS * _TOKEN) / _ROOM
    return Sharing(base, overhead, room, bound)
