"""Moments as people say them: until, ago, when a waiting task starts. Counted from now each time they are drawn."""

from datetime import UTC, datetime

from contract.wording.duration_words import duration
from motet.api.resources import Waiting


def until(moment: datetime | None) -> str:
    """`in 10 min`; `now` for a moment that has passed; empty without one."""
    if moment is None:
        return ""
    seconds = (moment - datetime.now(UTC)).total_seconds()
    return f"in {duration(seconds)}" if seconds >= 1 else "now"


def ago(moment: datetime) -> str:
    return f"{duration(max(0.0, (datetime.now(UTC) - moment).total_seconds()))} ago"


def starts(waiting: Waiting) -> str:
    """When a waiting task starts, by its plan; empty where no plan says so. A plan's moment may pass before the task starts."""
    if waiting.expected_start is None:
        return ""
    seconds = (waiting.expected_start - datetime.now(UTC)).total_seconds()
    return f"starts in about {duration(seconds)}" if seconds >= 1 else "its start is due"
