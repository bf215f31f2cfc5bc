"""Why a task waits where no plan says it, and which changes of a task's `waiting` readers see or are notified of.

Values only: knows no database and no plan. service/scheduler/explain/waiting_text.py has the sentences of a plan.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

PAUSED = "paused"
NOT_BEFORE = "not_before"  # its spec asks for a later start; the planner does not see it yet
NOT_PLANNED = "not_planned"  # no plan has looked at it yet
_NEWS = (60.0, 0.25)  # seconds, and part of the remaining time, by which an expected start must move to be notified,
_SHOWN = (15.0, 0.1)  # and by which it must move to be shown


def plain(code: str, sentence: str) -> dict[str, Any]:
    """A reason that needs no plan."""
    nothing = ("place", "node", "expected_start", "expected_end", "expected_start_interval", "expected_end_interval")
    return {"code": code, "sentence": sentence, **dict.fromkeys(nothing), "late_seconds": None}


def paused() -> dict[str, Any]:
    return plain(PAUSED, "Its owner paused it; it goes on where it stood once it is resumed.")


def not_planned() -> dict[str, Any]:
    return plain(NOT_PLANNED, "It has just joined the queue; the next plan, due within seconds, says where and when it starts.")


def not_before(moment: datetime) -> dict[str, Any]:
    """The spec asks for a start no earlier than this."""
    said = plain(NOT_BEFORE, f"Its spec asks for a start no earlier than {moment.isoformat()}.")
    return said | {"expected_start": moment.isoformat()}


def differs(before: Mapping[str, Any] | None, after: Mapping[str, Any], at: datetime) -> bool:
    """Whether the change is notified: another code, or a start that moved by a lot. Place and node do not count: they change
    with every start, for all waiting tasks."""
    return before is None or before.get("code") != after["code"] or _moved(before, after, at, *_NEWS)


def shows(before: Mapping[str, Any], after: Mapping[str, Any], at: datetime) -> bool:
    """Whether readers see the change: one to notify, another place or node, or a start that moved by more than a little."""
    return any(before.get(name) != after[name] for name in ("code", "place", "node")) or _moved(before, after, at, *_SHOWN)


def _moved(before: Mapping[str, Any], after: Mapping[str, Any], at: datetime, seconds: float, part: float) -> bool:
    if (before.get("late_seconds") is None) != (after["late_seconds"] is None):
        return True
    if before["expected_start"] is None or after["expected_start"] is None:
        return bool(before["expected_start"] != after["expected_start"] or before["sentence"] != after["sentence"])
    then, now = datetime.fromisoformat(before["expected_start"]), datetime.fromisoformat(after["expected_start"])
    return abs((now - then).total_seconds()) > max(seconds, part * (now - at).total_seconds())
