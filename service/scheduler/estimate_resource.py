"""What an estimate of a task says, as JSON."""

from datetime import datetime
from typing import Literal

from pydantic import BaseModel, Field

from service.http.problems import FieldError


class Between(BaseModel):
    """The expected value, and the interval that holds the true one most of the time."""

    expected: float
    low: float
    high: float


class WidthEstimate(BaseModel):
    """What the task would take on so many GPUs of one node."""

    gpus: int
    seconds: Between
    gpu_seconds: Between = Field(description="The seconds of all of them, which is what is paid for")


class DeviceTypeEstimate(WidthEstimate):
    """What the task would take on GPUs of one type."""

    device_type: str


class EstimateResource(BaseModel):
    """What the task would take if it were posted now."""

    object: Literal["estimate"] = "estimate"
    jobs: int
    tokens: float = Field(description="Expected to be trained; early exit is counted in")
    full_tokens: float = Field(description="If every job trained to its end")
    text_tokens: float | None = Field(
        default=None,
        description="At most read and generated for `evaluation`: every text as long as max_new_tokens allows, an adapter kept "
        "of every job, and where select_by is a metric each job's at the end of warmup. Billed as evaluation tokens, and not "
        "among tokens; null where none is asked",
    )
    text_gpu_seconds: float | None = Field(
        default=None,
        description="Of gpu_seconds.expected, what these texts take at most, from the measured times of steps; the low end of "
        "each interval has that of reading their prompts alone. Contained in the cost and the expected end",
    )
    gpus: int = Field(
        description="That it would start on: more than gpus where its base needs them, or max_gpus allows it and they are idle"
    )
    gpu_seconds: Between = Field(description="At that width")
    widths: list[WidthEstimate] = Field(
        description="Each width that the spec allows, ascending, from the narrowest that holds the base"
    )
    device_types: list[DeviceTypeEstimate] = Field(
        description="On each type of GPU that it fits, the fewest of one node that hold its base, but at least gpus"
    )
    cost: Between | None = Field(
        default=None,
        description="At that width, by the price of the type that it would start on; where its start is unknown, from the "
        "cheapest of the types that it fits to the dearest. Null where one of these has no price",
    )
    currency: str = Field(default="", description="Of the cost")
    device_type: str | None = Field(
        description="The estimate is for this one: the fleet's fastest that it fits, or, where its base needs more GPUs than "
        "it asks for on some type, that of its planned node"
    )
    expected_start: datetime | None = Field(description="Null where no node has room for it")
    expected_end: datetime | None
    expected_start_interval: list[datetime] | None
    expected_end_interval: list[datetime] | None
    waiting: str | None = Field(description="Why it would not start at once")
    slowdown: float = Field(description="How many times slower than alone it would begin, beside others; 1: it would be alone")
    sharing: str | None = Field(description="With how many tasks it would share GPUs, and what that means, in a sentence")
    sharding: str | None = Field(
        default=None,
        description="How its GPUs share the base, in a sentence; null where a copy fits on each. A worker that finds no room "
        "beside it for the task's passes shares some layers all the same, which the task's events tell",
    )
    base_download: str | None = Field(
        description="What its node fetches from the hub, or from storage, before it can train, in a sentence"
    )
    problems: list[FieldError] = Field(
        description="Rows of its files that will be cut or left out; GPUs that stand idle; a deadline that is missed"
    )
