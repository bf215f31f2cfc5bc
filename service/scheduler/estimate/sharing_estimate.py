"""What a task brings to an executor that it shares: its part of a step, and its part of a GPU's memory. Values only.

The service knows a base by its parameters alone, so memory follows from how widths and depths grow with them over the Llama
family (a rank takes about 0.65 P^(2/3) numbers over all seven matrices, a token's activations about 0.17 P^(3/4) bytes). The
worker's own memory model has the last word: a job that it has no room for waits there.
"""

import math
from collections.abc import Sequence

from contract.states import JOB_TERMINAL
from service.scheduler.core.joins.slowdowns import Sharing
from service.scheduler.estimate.step_cost import StepCost
from service.scheduler.estimate.survival import ReportedProgress
from service.scheduler.estimate.task_duration import STEP_TOKENS

ALONE_AFTER = 2  # executors lost under a task in a row, without progress, after which it shares with nobody
_RANK_NUMBERS, _BYTES_EACH = 0.65, 16  # weight, gradient and two moments in 32 bits
_TOKEN_BYTES = 0.17
_MARGIN = 0.9  # part of the memory that a worker fills


def sharing(
    group: str,
    jobs: Sequence[ReportedProgress],
    tokens_per_row: float,
    cost: StepCost,
    gpus: int,
    free_bytes: float,
    parameters: int,
    bound: float,
    weight: float,
) -> Sharing | None:
    """What the task brings to an executor on `gpus` GPUs with `free_bytes` each beside the base; None where nothing is left to
    train or memory holds no pass beside it."""
    live = [job for job in jobs if job.status not in JOB_TERMINAL and job.step < job.total_steps]
    room = _MARGIN * free_bytes - _TOKEN_BYTES * parameters**0.75 * STEP_TOKENS
    if not live or room <= 0:
        return None
    tokens = max(1.0, sum(job.batch_size for job in live) * tokens_per_row / gpus)
    rows = sum(job.rank for job in live) / gpus
    passes = math.ceil(tokens / STEP_TOKENS)
    adapters = rows * _RANK_NUMBERS * parameters ** (2 / 3) * _BYTES_EACH
    return Sharing(group, cost.overhead(tokens, passes), adapters / room, bound, weight)
