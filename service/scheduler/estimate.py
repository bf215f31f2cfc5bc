"""How long a task will still take: the tokens it is expected to train, over the tokens a second it trains at.

Before anything is measured, stated assumptions stand in; the first throughput report replaces them. Values only.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from contract.spec import EarlyExitPolicy
from contract.states import JOB_TERMINAL, JobStatus

BYTES_PER_TOKEN = 3.5  # of JSONL; the service has no tokenizer
FLOPS_PER_TOKEN = 4  # for each parameter: forward, and backward through a frozen base
ASSUMED_FLOPS = {"cpu": 2e10}  # a second, by device type
ASSUMED_ACCELERATOR_FLOPS = 1.5e14
LOADING_SECONDS = 5.0  # a placement trains nothing while its executor loads
SHORTEST_SECONDS = 5.0  # nobody's end is known better than this
EMA_PART = 0.3  # how much the newest measurement counts


@dataclass(frozen=True)
class JobProgress:
    """One job as far as it is known. Before a placement has counted rows, the calendar is made from the file's rows."""

    status: JobStatus
    step: int
    total_steps: int
    warmup_steps: int
    batch_size: int
    promoted: bool


def expected_steps(job: JobProgress, policy: EarlyExitPolicy) -> float:
    """Optimizer steps the job still trains, on average over jobs like it.

    Prior: `keep_fraction` of the jobs pass the warmup boundary and train to their end (with ALTO's 5 % and 25 % that
    saves 71 %; its paper measured 72 to 83 %).
    """
    if job.status in JOB_TERMINAL:
        return 0.0
    survives = 1.0 if policy.policy == "none" or job.promoted else policy.keep_fraction
    boundary = max(job.step, job.warmup_steps)
    return (boundary - job.step) + survives * max(0, job.total_steps - boundary)


def expected_tokens(jobs: Iterable[JobProgress], policy: EarlyExitPolicy, tokens_per_row: float) -> float:
    return sum(expected_steps(job, policy) * job.batch_size * tokens_per_row for job in jobs)


def tokens_per_row(file_bytes: int, rows: int, max_seq_len: int) -> float:
    """Tokens of an average row, as its bytes suggest."""
    return max(1.0, min(max_seq_len, file_bytes / max(1, rows) / BYTES_PER_TOKEN))


def assumed_rate(device_type: str, parameters: int) -> float:
    """Tokens per second of one device that nothing has been measured on."""
    flops = ASSUMED_FLOPS.get(device_type, ASSUMED_ACCELERATOR_FLOPS)
    return flops / (FLOPS_PER_TOKEN * max(1, parameters))


def measured_rate(before: float | None, tokens: int, seconds: float, gpus: int) -> float | None:
    """The moving average of trained tokens per second and device, after one more measurement; evaluations cost time too."""
    if tokens <= 0 or seconds <= 0:
        return before
    rate = tokens / seconds / gpus
    return rate if before is None else (1 - EMA_PART) * before + EMA_PART * rate


def seconds_for(tokens: float, rate: float, gpus: int) -> int:
    """Whole seconds on `gpus` devices of `rate` tokens per second each, loading included."""
    return round(max(SHORTEST_SECONDS, LOADING_SECONDS + tokens / (rate * gpus)))
