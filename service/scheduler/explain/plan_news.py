"""Decides which changes of waiting tasks are notified: written to row and plan history, with a new version. Touches no rows.

A new place in the queue is not notified: readers take it from the plan in force (queue_status.py). Notified are a first plan,
another reason, and a start that moved by a lot. Changes that are not urgent are rate limited, since one event may change all
waiting tasks; the next plan compares deferred ones again.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from service.tasks.plan_status.unplanned_reasons import NOT_BEFORE, NOT_PLANNED
from service.tasks.plan_status.waiting_changes import differs

RATE = 20.0  # tasks per second with deferrable changes that are notified,
LEAST, MOST = 16, 1000  # and bounds on their number per plan

Said = Mapping[str, Any]


@dataclass(frozen=True)
class News:
    """notified: the tasks whose owners this plan notifies, and what it says of each. deferred: those left to a later plan."""

    notified: dict[str, dict[str, Any]]
    deferred: tuple[str, ...] = ()


def budget(seconds: float | None) -> int:
    """How many deferrable changes a plan may notify, `seconds` after the previous plan (None: it is the first)."""
    return MOST if seconds is None else min(MOST, max(LEAST, int(RATE * seconds)))


def choose(before: Mapping[str, Said | None], after: Mapping[str, dict[str, Any]], at: datetime, room: int) -> News:
    """Compares what owners know from `before` with the new plan: all urgent changes, then up to `room` others, other reasons
    before other times, soonest start first."""
    urgent, others = [], []
    for id, said in after.items():
        if _urgent(before[id], said):
            urgent.append(id)
        elif differs(before[id], said, at):
            others.append(id)
    others.sort(key=lambda id: ((before[id] or {}).get("code") == after[id]["code"], after[id]["expected_start"] or "z", id))
    return News({id: after[id] for id in [*urgent, *others[:room]]}, tuple(others[room:]))


def _urgent(before: Said | None, after: Said) -> bool:
    """A task's first plan, and whether its spec still holds it back, which its row must show."""
    if before is None or before.get("code") == NOT_PLANNED:
        return True
    return (before.get("code") == NOT_BEFORE) != (after["code"] == NOT_BEFORE)
