"""Which changes of a waiting task are notified: written to its row and its plan history, with a new version. Knows no rows.

A place in the queue is no news: it is read from the plan in force (queue_status.py) when somebody asks. News is a first plan,
another reason, and a start that moved by a lot. What is not urgent is rate limited, since one event may change all that wait;
what is put off is compared again by the next plan.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from service.scheduler.explain.waiting_text import NOT_BEFORE, NOT_PLANNED, differs

RATE = 20.0  # tasks a second that are notified of news which may be put off,
LEAST, MOST = 16, 1000  # and of one plan at least and at most so many

Said = Mapping[str, Any]


@dataclass(frozen=True)
class News:
    """`told` is notified by this plan, `put_off` are tasks that have news as well."""

    told: dict[str, dict[str, Any]]
    put_off: tuple[str, ...] = ()


def budget(seconds: float | None) -> int:
    """How many tasks' news a plan may notify that comes so many seconds after the one before it (None: it is the first)."""
    return MOST if seconds is None else min(MOST, max(LEAST, int(RATE * seconds)))


def choose(before: Mapping[str, Said | None], after: Mapping[str, dict[str, Any]], at: datetime, room: int) -> News:
    """Of what the owners were told `before` and the plan says now: all that is urgent, then other reasons, then other times,
    the soonest start first, as far as there is room."""
    urgent, others = [], []
    for id, said in after.items():
        if _urgent(before[id], said):
            urgent.append(id)
        elif differs(before[id], said, at):
            others.append(id)
    others.sort(key=lambda id: ((before[id] or {}).get("code") == after[id]["code"], after[id]["expected_start"] or "z", id))
    return News({id: after[id] for id in [*urgent, *others[:room]]}, tuple(others[room:]))


def _urgent(before: Said | None, after: Said) -> bool:
    """A task's first plan, and the two changes that its row must show: whether its spec still holds it back."""
    if before is None or before.get("code") == NOT_PLANNED:
        return True
    return (before.get("code") == NOT_BEFORE) != (after["code"] == NOT_BEFORE)
