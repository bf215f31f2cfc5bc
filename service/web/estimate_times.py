"""When a task that is not yet submitted would start, and how long it would run, in words that do not age. Pure."""

from dataclasses import dataclass
from datetime import datetime

from service.scheduler.estimate_resource import EstimateResource
from service.web.views.formats import NONE, duration


@dataclass(frozen=True)
class EstimateTimes:
    """`starts` in words; `takes` and its interval in seconds, from the task's start to its end."""

    starts: str
    takes: float
    low: float
    high: float

    @classmethod
    def of(cls, estimate: EstimateResource, now: datetime) -> "EstimateTimes":
        """From the plan, with the spread of the run alone; without a planned start, the run alone."""
        alone = next(width for width in estimate.widths if width.gpus == estimate.gpus).seconds
        start, end = estimate.expected_start, estimate.expected_end
        if start is None or end is None:
            return cls(NONE, alone.expected, alone.low, alone.high)
        takes = (end - start).total_seconds()
        stretch = takes / alone.expected if alone.expected else 1.0
        waits = (start - now).total_seconds()
        starts = "at once" if waits <= 0 else f"in {duration(waits)}"
        return cls(starts, takes, alone.low * stretch, alone.high * stretch)
