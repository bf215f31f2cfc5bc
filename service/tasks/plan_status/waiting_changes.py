"""Which changes of a task's `waiting` readers see, and which they are notified of. Values only: knows no database."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

_NEWS = (60.0, 0.25)  # seconds, and part of the remaining time, by which an expected start must move to be notified,
_SHOWN = (15.0, 0.1)  # and by which it must move to be shown


def differs(before: Mapping[str, Any] | None, after: Mapping[str, Any], at: datetime) -> bool:
    """Whether the change is notified: another code or number of GPUs, or a start that moved by a lot. Place and node do not
    count: they change with every start, for all waiting tasks."""
    return before is None or before.get("code") != after["code"] or _widened(before, after) or _moved(before, after, at, *_NEWS)


def shows(before: Mapping[str, Any], after: Mapping[str, Any], at: datetime) -> bool:
    """Whether readers see the change: one to notify, another sentence, place or node, or a start that moved by more than a
    little."""
    other = any(before.get(name) != after[name] for name in ("code", "sentence", "place", "node")) or _widened(before, after)
    return other or _moved(before, after, at, *_SHOWN)


def _widened(before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
    """Whether it waits for another number of GPUs; not where `before` has none, as version N-1 writes it."""
    return before.get("gpus") not in (None, after.get("gpus"))


def _moved(before: Mapping[str, Any], after: Mapping[str, Any], at: datetime, seconds: float, part: float) -> bool:
    if (before.get("late_seconds") is None) != (after["late_seconds"] is None):
        return True
    if before["expected_start"] is None or after["expected_start"] is None:
        return bool(before["expected_start"] != after["expected_start"] or before["sentence"] != after["sentence"])
    then, now = datetime.fromisoformat(before["expected_start"]), datetime.fromisoformat(after["expected_start"])
    return abs((now - then).total_seconds()) > max(seconds, part * (now - at).total_seconds())
