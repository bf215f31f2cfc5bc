"""Rolls up placements that ended into usage by day and GPU type, and ended tasks into a month's savings, so that no read of
usage grows with the history. What has not been rolled up yet is read from its rows (usage_queries.py).

An ended row changes no more after SETTLED, so each is counted once: those that ended before the moment in
`usage_rolled_up_through` are in the tables. Retention removes no other placement. The roll-up stops before the placements of a
task that is running without one: its rewind, which the reconciler has yet to make, takes usage back from them.
"""

from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import func, select, text
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session, aliased

from contract.states import TaskStatus
from service.database.ended_rows import SETTLED, claim_mark
from service.database.engine import Database, clock
from service.fleet.models import Placement
from service.tasks.models import Task
from service.usage.models import MonthlySavings, RolledUpThrough, TaskUsageRecord
from service.usage.usage_queries import AMOUNTS, UNKNOWN_TYPE, with_savings

_MOST = 5000  # placements, and tasks, of one transaction
_LOCK = 0x75736167  # "usag"; an advisory lock of this database

_other = aliased(Placement)
_LIVE = select(_other.id).where(_other.task_id == Task.id, _other.ended_at.is_(None)).exists()
_YET_TO_REWIND = select(func.min(Placement.ended_at)).join(Task, Task.id == Placement.task_id)
_YET_TO_REWIND = _YET_TO_REWIND.where(Task.status == TaskStatus.RUNNING, ~_LIVE)
_NAMES = ", ".join(AMOUNTS)
_ADDED = ", ".join(f"{name} = kept.{name} + excluded.{name}" for name in AMOUNTS)
_OF_PLACEMENTS = """sum(p.tokens - p.rewound_tokens) AS tokens,
    sum(p.evaluation_tokens - p.rewound_evaluation_tokens) AS evaluation_tokens, sum(p.rewound_tokens) AS rewound_tokens,
    sum((p.gpu_seconds - p.rewound_gpu_seconds) * cardinality(p.device_indexes)) AS gpu_seconds"""
_BY_TENANT = f"""INSERT INTO tenant_daily_usage AS kept (tenant_id, day, device_type, {_NAMES})
    SELECT tenant_id, day, device_type, {", ".join(f"sum({name})" for name in AMOUNTS)} FROM found
    GROUP BY tenant_id, day, device_type ON CONFLICT (tenant_id, day, device_type) DO UPDATE SET {_ADDED}"""
# in the order of the tasks' ids, since each row's foreign key locks its task, and others lock several tasks in this order
_BY_TASK = f"""INSERT INTO daily_usage AS kept (task_id, day, device_type, tenant_id, {_NAMES})
    SELECT task_id, day, device_type, tenant_id, {_NAMES} FROM found ORDER BY task_id
    ON CONFLICT (task_id, day, device_type) DO UPDATE SET {_ADDED}"""
_ROLL_UP = text(
    f"""WITH found AS MATERIALIZED (
        SELECT p.task_id, (p.created_at AT TIME ZONE 'UTC')::date AS day, t.tenant_id,
            coalesce(p.device_type, n.devices -> 0 ->> 'type', '{UNKNOWN_TYPE}') AS device_type, {_OF_PLACEMENTS}
        FROM placements p JOIN tasks t ON t.id = p.task_id JOIN nodes n ON n.id = p.node_id
        WHERE p.ended_at >= :since AND p.ended_at < :until GROUP BY 1, 2, 3, 4
    ), by_task AS ({_BY_TASK})
    {_BY_TENANT}"""
)
# what the ledger holds of placements that were removed before the first roll-up: of no known type, on the month's first day
_REMOVED = text(
    f"""WITH there AS (
        SELECT p.task_id, date_trunc('month', p.created_at AT TIME ZONE 'UTC')::date AS month, {_OF_PLACEMENTS}
        FROM placements p GROUP BY 1, 2
    ), found AS MATERIALIZED (
        SELECT u.task_id, u.month AS day, u.tenant_id, '{UNKNOWN_TYPE}' AS device_type,
            u.tokens - u.rewound_tokens - coalesce(p.tokens, 0) AS tokens,
            u.evaluation_tokens - u.rewound_evaluation_tokens - coalesce(p.evaluation_tokens, 0) AS evaluation_tokens,
            u.rewound_tokens - coalesce(p.rewound_tokens, 0) AS rewound_tokens,
            u.gpu_seconds - u.rewound_gpu_seconds - coalesce(p.gpu_seconds, 0) AS gpu_seconds
        FROM task_usage u LEFT JOIN there p ON p.task_id = u.task_id AND p.month = u.month
        WHERE u.tokens <> coalesce(p.tokens + p.rewound_tokens, 0) OR u.gpu_seconds > 0 AND p.task_id IS NULL
    ), by_task AS ({_BY_TASK})
    {_BY_TENANT}"""
)


def roll_up(db: Database, settled: timedelta = SETTLED) -> None:
    """Roll up what has ended since the last call, but for the last hour. One call at a time; another one does nothing."""
    with db.begin() as session:
        until = clock(session) - settled
        until = min(until, session.scalar(_YET_TO_REWIND) or until)
    while _advance(db, until):
        pass


def _advance(db: Database, until: datetime) -> bool:
    """Roll up at most _MOST placements and tasks in one transaction; returns whether there may be more."""
    with db.begin() as session:
        if (claimed := claim_mark(session, RolledUpThrough, _LOCK, until)) is None:
            return False
        mark, is_new = claimed
        if is_new:
            session.execute(_REMOVED)
        then = min(until, *(_nth(session, kind, mark.moment, until) for kind in (Placement, Task)))
        within = {"since": mark.moment, "until": then}
        session.execute(_ROLL_UP, within)
        session.execute(_saved(mark.moment, then))
        mark.moment = then
        return then < until


def _nth(session: Session, kind: type[Placement] | type[Task], since: datetime, until: datetime) -> datetime:
    """When the first row ended after the _MOST that ended from `since` on; `until` if there are fewer, or all at one moment."""
    later = select(kind.ended_at).where(kind.ended_at >= since, kind.ended_at < until)
    found = session.scalar(later.order_by(kind.ended_at).offset(_MOST).limit(1))
    return found if found is not None and found > since else until


def _saved(since: datetime, until: datetime) -> Any:
    """Adds the savings of tasks that ended in between to each month in which they ran."""
    saved = with_savings(select(TaskUsageRecord.tenant_id, TaskUsageRecord.month))
    of_tasks = saved.where(Task.ended_at >= since, Task.ended_at < until).subquery().c
    names = ("saved_tokens", "saved_gpu_seconds")
    sums = select(of_tasks.tenant_id, of_tasks.month, *(func.sum(of_tasks[name]) for name in names))
    made = insert(MonthlySavings).from_select(["tenant_id", "month", *names], sums.group_by(of_tasks.tenant_id, of_tasks.month))
    added = {name: getattr(MonthlySavings, name) + made.excluded[name] for name in names}
    return made.on_conflict_do_update(index_elements=["tenant_id", "month"], set_=added)
