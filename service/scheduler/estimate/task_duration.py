"""Predicts a task's remaining time and its interval from its jobs, their survival and the throughput.

Knows no clock and no database. Integrates over a grid of the remaining steps: at each point, the expected number of live jobs
(survival.py) and the time of a step with their tokens (throughput.py). So a tail of few small jobs is slow per token, and the
end is that of the last survivor, not of the average job.
"""

from collections import Counter
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from contract.early_exit_policy import EarlyExitPolicy
from contract.evaluation_plan import EVALUATIONS
from contract.states import JOB_TERMINAL
from service.scheduler.estimate.survival import (
    NOTHING,
    JobLifetimes,
    ReportedProgress,
    belief,
    hazards,
    lived,
    promotion,
    unranked,
)
from service.scheduler.estimate.text_tokens import NO_TEXTS, TextWork
from service.scheduler.estimate.throughput import NEWEST, ThroughputModel, speed

INSIDE = 0.8  # the part of true ends that lie within the interval
BYTES_PER_TOKEN = 3.5  # of JSONL; the service has no tokenizer
LOADING_SECONDS = 5.0  # a placement trains nothing while its executor loads
SHORTEST_SECONDS = 5.0  # lower bound on the error of a predicted end
EVALUATION = 0.5  # a forward pass alone, relative to training a token
STEP_TOKENS = 16384  # most tokens on a GPU at once; a larger step is split
TEXTS_AT_ONCE = 256  # most sequences that a GPU generates in one pass
_WARM, _LATE = 6, 24  # grid points before the last boundary, and after it
_TABLE = np.arange(0.0, 24.5, 0.5)  # log2 of tokens at which a base's speed is tabulated

Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class TaskWork:
    """The inputs that determine a task's duration.

    `jobs` are all its jobs, ended ones too, whose exits inform the others' hazards. `tokens_per_row` is the mean over its
    training rows, `validation_rows` the rows of one evaluation, `of_class` the exits and phases of ended tasks of its
    `shape_class`.
    """

    jobs: tuple[ReportedProgress, ...]
    policy: EarlyExitPolicy
    tokens_per_row: float
    validation_rows: int = 0
    of_class: JobLifetimes = NOTHING
    texts: TextWork = NO_TEXTS


@dataclass(frozen=True)
class Estimate:
    """Expected training `tokens` and `seconds` still to come, and the interval that holds the true end `INSIDE` of the time.

    `text_seconds` are those of `seconds` in which texts are generated, each as long as it may be.
    """

    tokens: float
    seconds: float
    low: float
    high: float
    text_seconds: float = 0.0


@dataclass(frozen=True)
class _Group:
    """Identical jobs. In steps: `warm` from now to the boundary, `late` after it, of phases `warmup` and `rest` long."""

    warm: int
    late: int
    warmup: int
    rest: int
    batch_size: int
    rank: int
    passes: float


def tokens_per_row(file_bytes: int, rows: int, max_seq_len: int, sequences: int = 1) -> float:
    """Mean tokens per row, estimated from bytes; of so many sequences a row, each of which is cut at max_seq_len."""
    return max(1.0, min(sequences * max_seq_len, file_bytes / max(1, rows) / BYTES_PER_TOKEN))


def estimate(work: TaskWork, model: ThroughputModel, gpus: int, step_tokens: int = STEP_TOKENS) -> Estimate:
    """The remaining work on `gpus` GPUs, each with the whole base; jobs are distributed over them, and none is split."""
    groups = _groups(work)
    reading, writing = _text_seconds(work.texts, model, step_tokens)
    if not groups:
        least, most = max(SHORTEST_SECONDS, reading), max(SHORTEST_SECONDS, reading + writing)
        return Estimate(0.0, most, least, most, reading + writing)
    edges = _grid(list(groups))
    middles, lengths = (edges[1:] + edges[:-1]) / 2, np.diff(edges)
    alive, any_alive = _alive(work, groups, middles)
    row_tokens = np.array([work.tokens_per_row * group.batch_size for group in groups])
    trained = np.einsum("hgm,g->hm", alive, row_tokens)
    worked = trained + np.einsum("hgm,g->hm", alive, _evaluated(work, list(groups)))
    share = _largest_share(alive.sum(axis=1) / np.maximum(any_alive, 1e-9), gpus)
    per_gpu = np.maximum(worked / np.maximum(any_alive, 1e-9) * share, min(row_tokens))
    seconds, deviation = _step_seconds(model, per_gpu, step_tokens, _rows(groups, gpus), gpus)
    spent = np.cumsum(seconds * lengths, axis=1)
    mean = float((any_alive * seconds * lengths).sum(1).mean())
    low, high = _interval(spent, any_alive, float(deviation.mean()))
    return Estimate(
        tokens=float((trained * lengths).sum(1).mean()),
        seconds=max(SHORTEST_SECONDS, LOADING_SECONDS + mean + reading + writing),
        low=max(SHORTEST_SECONDS, LOADING_SECONDS + low + reading),
        high=max(SHORTEST_SECONDS, LOADING_SECONDS + high + reading + writing),
        text_seconds=reading + writing,
    )


def _text_seconds(texts: TextWork, model: ThroughputModel, step_tokens: int) -> tuple[float, float]:
    """Seconds to read the prompts, and to write texts as long as they may be, on whatever number of GPUs: one of them generates
    while the others wait. A pass costs what a step of as many
    tokens does, as measured, without its backward part: full passes of prompts; a pass for each token of the texts that are
    written at once."""
    if not texts.evaluations or not texts.prompts:
        return 0.0, 0.0
    at_once = min(texts.prompts, TEXTS_AT_ONCE)
    read = texts.evaluations * texts.prompts * texts.read / step_tokens
    passes = texts.evaluations * texts.prompts * texts.written / at_once
    return EVALUATION * read * speed(model, step_tokens).seconds, EVALUATION * passes * speed(model, at_once).seconds


def _groups(work: TaskWork) -> Counter[_Group]:
    passes = promotion(work.jobs, work.policy)
    found: Counter[_Group] = Counter()
    for job in work.jobs:
        if job.status in JOB_TERMINAL or job.step >= job.total_steps:
            continue
        rest = job.total_steps - job.warmup_steps
        warm, late = max(0, job.warmup_steps - job.step), min(rest, job.total_steps - job.step)
        found[_Group(warm, late, job.warmup_steps, rest, job.batch_size, job.rank, passes if unranked(job) else 1.0)] += 1
    return found


def _grid(groups: list[_Group]) -> Numbers:
    """Grid edges in steps from now: fine up to the last boundary, coarse after it, plus the ends of jobs that survive."""
    boundary = max(group.warm for group in groups)
    end = max(group.warm + group.late for group in groups)
    ends = sorted({group.warm + group.late for group in groups})
    parts = (np.linspace(0, boundary, _WARM + 1), np.linspace(boundary, end, _LATE + 1), ends[:: 1 + len(ends) // 16])
    return np.unique(np.concatenate(parts))


def _alive(work: TaskWork, groups: Counter[_Group], steps: Numbers) -> tuple[Numbers, Numbers]:
    """(hazard, group, step): expected live jobs of a group; (hazard, step): the probability that any job is alive.

    Some job always passes the boundary, so the second is conditional on that; after it a task's jobs live and end together.
    """
    seen = belief(work.policy, work.of_class, lived(work.jobs))
    warm_hazard = np.array(hazards(seen.warm_exits, seen.warm_lived))[:, None, None]
    late_hazard = np.array(hazards(seen.late_exits, seen.late_lived))[:, None, None]

    def column(values: list[float]) -> Numbers:
        return np.array(values, np.float64)[None, :, None]

    warm, late = column([g.warm for g in groups]), column([g.late for g in groups])
    warmup, rest = column([max(1, g.warmup) for g in groups]), column([max(1, g.rest) for g in groups])
    passes, many = column([g.passes for g in groups]), column(list(map(float, groups.values())))
    before = np.exp(-warm_hazard * np.minimum(steps, warm) / warmup)
    behind = np.exp(-late_hazard * np.clip(steps - warm, 0, late) / rest) * (steps < warm + late)
    chance = np.where(steps < warm, before, before * passes * behind)

    def some(part: Numbers) -> Numbers:
        found: Numbers = 1 - np.prod((1 - part) ** many, axis=1)
        return found

    reach = some(np.exp(-warm_hazard * warm / warmup))
    pass_ = some(passes * (steps < warm + late)) / np.maximum(some(passes), 1e-9)
    any_alive = np.maximum(some(before * (steps < warm)), reach * pass_ * behind.max(axis=1))
    return chance * many, any_alive


def _evaluated(work: TaskWork, groups: list[_Group]) -> Numbers:
    """Evaluation cost per step of each group, in equivalent training tokens."""
    totals = [group.warmup + group.rest for group in groups]
    every = [work.policy.eval_every or max(1, total // EVALUATIONS) for total in totals]
    return EVALUATION * work.validation_rows * work.tokens_per_row / np.array(every, np.float64)


def _largest_share(jobs: Numbers, gpus: int) -> Numbers:
    """The fraction of the jobs' tokens on the GPU with the most jobs, for which the others wait at each step; interpolated
    between whole numbers of jobs."""
    jobs = np.maximum(jobs, 1.0)
    below = np.floor(jobs)
    fewer, more = np.ceil(below / gpus), np.ceil((below + 1) / gpus)
    share: Numbers = (fewer + (jobs - below) * (more - fewer)) / jobs
    return share


def _rows(groups: Counter[_Group], gpus: int) -> float:
    """Adapter rows on one GPU while all jobs that may pass the boundary are there."""
    return sum(many * group.rank * group.passes for group, many in groups.items()) / gpus


def _step_seconds(model: ThroughputModel, tokens: Numbers, most: int, rows: float, gpus: int) -> tuple[Numbers, Numbers]:
    table = _speeds(model, rows, gpus)
    at = np.log2(np.clip(tokens, 1, most))
    seconds = np.exp(np.interp(at, _TABLE, table[0]))
    return seconds * np.maximum(1.0, tokens / most), np.interp(at, _TABLE, table[1])


@lru_cache(maxsize=1024)
def _speeds(model: ThroughputModel, rows: float, gpus: int) -> tuple[Numbers, Numbers]:
    found = [speed(model, 2.0**power, rows, gpus) for power in _TABLE]
    return np.log([each.seconds for each in found]), np.array([each.deviation for each in found])


def _interval(spent: Numbers, any_alive: Numbers, deviation: float) -> tuple[float, float]:
    """Quantiles of the last survivor's end, over hazards and over the error of the speed."""
    rest = np.concatenate([any_alive[:, 1:], np.zeros((len(any_alive), 1))], axis=1)
    mass = np.maximum(any_alive - rest, 0)
    factors = np.exp(deviation * np.array([NormalDist().inv_cdf(part) for part in (0.1, 0.3, 0.5, 0.7, 0.9)]))
    ends = (spent[..., None] * factors).ravel()
    order = ends.argsort()
    below = np.cumsum(np.repeat(mass, len(factors)).ravel()[order])
    edge = (1 - INSIDE) / 2 * below[-1]
    low, high = np.searchsorted(below, [edge, below[-1] - edge])
    return float(ends[order[low]]), float(ends[order[min(high, len(order) - 1)]])


def measured_rate(before: float | None, tokens: int, seconds: float, gpus: int) -> float | None:
    """The moving average of trained tokens per second and device, after one more measurement; evaluation time is included."""
    if tokens <= 0 or seconds <= 0:
        return before
    rate = tokens / seconds / gpus
    return rate if before is None else (1 - NEWEST) * before + NEWEST * rate
