"""Counts rows that have ended, each once: what keeps such sums holds a mark, the moment before which all are counted.

A mark is one row of a table with `id` and `moment`. What ended from it on is read from its rows.
"""

from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

# A transaction gives a row its `ended_at` and commits later, at most this much: idle transactions are ended sooner. So much
# later a placement's last report, which comes within its lease, has come too.
SETTLED = timedelta(hours=1)
LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)


def claim_mark(session: Session, marks: Any, lock: int, until: datetime) -> tuple[Any, bool] | None:
    """The mark, for this transaction to move, and whether it is new (then at LONG_AGO); None where another transaction has it,
    or all that ended before `until` is counted. lock: of an advisory lock of this database.

    What ended before `until` changes no more, so its statements need no common snapshot; with one, a task that is reported on
    meanwhile could not be referred to."""
    if not session.scalar(select(func.pg_try_advisory_xact_lock(lock))):
        return None
    mark = session.get(marks, 1)
    if mark is not None:
        return (mark, False) if mark.moment < until else None
    mark = marks(id=1, moment=LONG_AGO)
    session.add(mark)
    return mark, True
