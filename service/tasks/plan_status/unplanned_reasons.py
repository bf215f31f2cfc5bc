"""Why a task waits where no plan says it: it is paused, due later, or not planned yet.

Values only: knows no database and no plan. service/scheduler/explain/waiting_sentences.py has the sentences of a plan.
"""

from datetime import datetime
from typing import Any

PAUSED = "paused"
NOT_BEFORE = "not_before"  # its spec asks for a later start; the planner does not see it yet
NOT_PLANNED = "not_planned"  # no plan has looked at it yet
# no version can read its row. Of the next release, which writes it in place of waiting_for_version; this one reads it alone
ROW_UNREADABLE = "row_unreadable"


def unplanned_reason(code: str, sentence: str) -> dict[str, Any]:
    """A reason that needs no plan."""
    nothing = ("place", "node", "expected_start", "expected_end", "expected_start_interval", "expected_end_interval")
    return {"code": code, "sentence": sentence, **dict.fromkeys(nothing), "late_seconds": None}


def paused_by_owner() -> dict[str, Any]:
    return unplanned_reason(PAUSED, "Its owner paused it; it goes on where it stood once it is resumed.")


def paused_unreadable(why: str) -> dict[str, Any]:
    """What it would go on from is damaged."""
    return unplanned_reason(
        PAUSED, f"It was paused since it cannot go on: {why}. Resume it once an operator has repaired that; or submit it again."
    )


def not_planned() -> dict[str, Any]:
    return unplanned_reason(
        NOT_PLANNED, "It has just joined the queue; the next plan, due within seconds, says where and when it starts."
    )


def not_before(moment: datetime) -> dict[str, Any]:
    """The spec asks for a start no earlier than this."""
    said = unplanned_reason(NOT_BEFORE, f"Its spec asks for a start no earlier than {moment.isoformat()}.")
    return said | {"expected_start": moment.isoformat()}
