"""Estimates of tasks, as the API answers them."""

from collections.abc import Sequence
from datetime import datetime

from contract.strict import Message
from motet.api.resources.files import RowProblem


class Between(Message):
    """An expected value, and the interval that holds the true one most of the time."""

    expected: float
    low: float
    high: float


class WidthEstimate(Message):
    """What a task would take on so many GPUs of one node."""

    gpus: int
    seconds: Between
    gpu_seconds: Between


class DeviceTypeEstimate(WidthEstimate):
    """What a task would take on GPUs of one type."""

    device_type: str


class Estimate(Message):
    """What a task would take if it were posted now."""

    jobs: int
    tokens: float
    full_tokens: float
    text_tokens: float | None = None
    text_gpu_seconds: float | None = None  # of gpu_seconds.expected, for these texts at most
    gpus: int
    gpu_seconds: Between
    widths: Sequence[WidthEstimate] = ()
    device_types: Sequence[DeviceTypeEstimate] = ()  # at the narrowest width on each type that it fits
    device_type: str | None = None
    expected_start: datetime | None = None
    expected_end: datetime | None = None
    expected_start_interval: Sequence[datetime] | None = None
    expected_end_interval: Sequence[datetime] | None = None
    waiting: str | None = None
    slowdown: float = 1.0  # at its start, against running alone
    sharing: str | None = None  # with how many tasks it would share GPUs, as a sentence
    sharding: str | None = None  # how its GPUs share the base, as a sentence; None: each holds a copy
    base_download: str | None = None  # what its node fetches first, as a sentence
    problems: Sequence[RowProblem] = ()
