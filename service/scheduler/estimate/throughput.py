"""Predicts the time of a step: profiles by base, precision, GPU type, tokens, adapter rows and width; a roofline before any.

Values only: knows no task and no database. A profile corrects the roofline fully where it was measured and less further away,
so one measurement improves the prediction for every size of step.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from service.scheduler.core.gpu_types import Hardware

FLOPS_PER_WEIGHT = 4.0  # per token and weight: forward, and backward through a frozen base
READS_PER_STEP = 2.0  # of each weight byte: forward and backward
NEWEST = 0.3  # weight of the newest measurement in the moving average
_UNMEASURED = 0.7  # log deviation of the roofline: a factor of two either way
_FURTHER = 0.15  # log deviation that each doubling of the distance to the nearest profile adds
_WIDER = 2.0  # a doubling of the width counts as this many of tokens: replicas wait for each other where they meet
_LEAST = 0.05  # lower bound of the log deviation


@dataclass(frozen=True)
class ProfileKey:
    """What a profile is measured for. `tokens` of a step and adapter `rows`, both per GPU, are rounded up to powers of two; 0
    rows: not reported. `width` is the GPUs of the placement, of which one was timed."""

    base: str
    precision: str
    gpu: str
    tokens: int
    rows: int
    width: int = 1


@dataclass(frozen=True)
class StepTimeProfile:
    """A moving average: log seconds per step at `tokens` tokens per GPU, its variance, and the number of measurements."""

    tokens: float
    log_seconds: float
    variance: float = 0.0
    measured: int = 1


@dataclass(frozen=True)
class ThroughputModel:
    """A base on a GPU type: the roofline's parameters, and the profiles of the pair, in any order."""

    parameters: int
    weight_bytes: int
    hardware: Hardware
    profiles: tuple[tuple[ProfileKey, StepTimeProfile], ...] = ()


@dataclass(frozen=True)
class Speed:
    """Seconds of a step, and the standard deviation of their log."""

    seconds: float
    deviation: float


def key_of(base: str, precision: str, gpu: str, tokens: float, rows: float = 0, width: int = 1) -> ProfileKey:
    return ProfileKey(base, precision, gpu, _up(tokens), _up(rows) if rows else 0, width)


def measured(before: StepTimeProfile | None, tokens: float, seconds: float) -> StepTimeProfile:
    """The profile after one more sample: `seconds` a step of `tokens` tokens per GPU. Raises ValueError unless both are
    positive."""
    if not (tokens > 0 and seconds > 0):
        raise ValueError(f"a step of {tokens} tokens in {seconds} s is no measurement")
    said = math.log(seconds)
    if before is None:
        return StepTimeProfile(tokens, said)
    off = said - before.log_seconds
    return StepTimeProfile(
        before.tokens + NEWEST * (tokens - before.tokens),
        before.log_seconds + NEWEST * off,
        (1 - NEWEST) * (before.variance + NEWEST * off * off),
        before.measured + 1,
    )


def roofline(model: ThroughputModel, tokens: float) -> float:
    """Seconds of a step of `tokens` tokens on one GPU: the longer of its FLOPs' and its bytes' time, plus a constant."""
    hardware = model.hardware
    compute = FLOPS_PER_WEIGHT * model.parameters * tokens / hardware.flops
    memory = READS_PER_STEP * model.weight_bytes / hardware.bytes_per_second
    return hardware.step_seconds + max(compute, memory)


def speed(model: ThroughputModel, tokens: float, rows: float = 0, width: int = 1) -> Speed:
    """A step of `tokens` tokens and `rows` adapter rows on one GPU of a placement with `width` GPUs.

    Profiles correct the roofline by the measured ratio, weighted by 4 ** -distance in doublings of tokens (half as strongly of
    rows, twice as strongly of the width).
    """
    total = log_ratio = variance = 0.0
    nearest = math.inf
    for key, profile in model.profiles:
        off = _doublings(tokens, profile.tokens) + _WIDER * _doublings(width, key.width)
        off += 0.5 * _doublings(rows, key.rows) if rows and key.rows else 0.0
        weight = 4.0**-off * min(profile.measured, 8)
        total += weight
        log_ratio += weight * (profile.log_seconds - math.log(roofline(model, profile.tokens)))
        variance += weight * profile.variance
        nearest = min(nearest, off)
    if total <= 0:
        return Speed(roofline(model, tokens), _UNMEASURED)
    deviation = math.sqrt(variance / total + _LEAST**2) + _FURTHER * nearest
    return Speed(roofline(model, tokens) * math.exp(log_ratio / total), min(deviation, _UNMEASURED))


def relevant(
    profiles: Mapping[ProfileKey, StepTimeProfile], base: str, precision: str, gpu: str
) -> tuple[tuple[ProfileKey, StepTimeProfile], ...]:
    """The profiles of this base in this precision on this GPU type."""
    return tuple((key, p) for key, p in profiles.items() if (key.base, key.precision, key.gpu) == (base, precision, gpu))


def _doublings(one: float, other: float) -> float:
    return abs(math.log2(max(one, 1.0) / max(other, 1.0)))


def _up(number: float) -> int:
    return 1 << max(0, math.ceil(math.log2(max(1.0, number))))
