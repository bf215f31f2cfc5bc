"""Usage ledger: adds work done and work undone by rewinds to the placement, to the task's month and to the tenant's counter, in
the transaction of the report. Nothing is counted from history later, so garbage collection may delete old placements.

A transaction locks the counter last, after task, placement and node. Knows no HTTP, no reports and no checkpoints.
"""

import zlib
from datetime import UTC, date, datetime

from sqlalchemy import func, select, text
from sqlalchemy.orm import Session

from service.database.prepared_statements import PreparedStatement
from service.fleet.models import Placement
from service.tasks.models import Task
from service.usage.models import TaskUsageRecord, TenantUsage

SHARDS = 8  # rows of a tenant's monthly counter

_ADD = PreparedStatement(
    text(
        """WITH of_task AS (
        INSERT INTO task_usage AS kept (task_id, month, tenant_id, tokens, evaluation_tokens, gpu_seconds,
            rewound_tokens, rewound_evaluation_tokens, rewound_gpu_seconds)
        VALUES (:task, :month, :tenant, :tokens, :evaluation_tokens, :gpu_seconds,
            :rewound_tokens, :rewound_evaluation_tokens, :rewound_gpu_seconds)
        ON CONFLICT (task_id, month) DO UPDATE SET tokens = kept.tokens + excluded.tokens,
            evaluation_tokens = kept.evaluation_tokens + excluded.evaluation_tokens,
            gpu_seconds = kept.gpu_seconds + excluded.gpu_seconds,
            rewound_tokens = kept.rewound_tokens + excluded.rewound_tokens,
            rewound_evaluation_tokens = kept.rewound_evaluation_tokens + excluded.rewound_evaluation_tokens,
            rewound_gpu_seconds = kept.rewound_gpu_seconds + excluded.rewound_gpu_seconds
    )
    INSERT INTO tenant_usage AS kept (tenant_id, month, shard, tokens) VALUES (:tenant, :month, :shard, :billed)
    ON CONFLICT (tenant_id, month, shard) DO UPDATE SET tokens = kept.tokens + excluded.tokens"""
    )
)


def month_at(moment: datetime) -> date:
    """The first day of the moment's month in UTC."""
    return moment.astimezone(UTC).date().replace(day=1)


def book(session: Session, task: Task, placement: Placement, tokens: int, evaluation_tokens: int, seconds: float) -> None:
    """Add the placement's work since the last booking. `seconds` are per GPU."""
    _add(session, task, placement, tokens, evaluation_tokens, seconds * len(placement.device_indexes))


def take_back(session: Session, task: Task, kept_rows: int, lost_rows: int) -> None:
    """Undo the share of the newest placement's usage that a rewind lost: `lost_rows` training rows. `kept_rows`: the task's
    training rows that still count. The caller holds the task's row lock."""
    trained = kept_rows + lost_rows - task.kept_rows  # by this placement: no rewind undoes an earlier placement's rows
    task.kept_rows = kept_rows
    if lost_rows <= 0 or trained <= 0:
        return
    task.rewound_rows += lost_rows
    newest = select(Placement).where(Placement.task_id == task.id).order_by(Placement.created_at.desc()).limit(1)
    placement = session.scalars(newest).one()
    part = min(1.0, lost_rows / trained)
    tokens, evaluated = round(placement.tokens * part), round(placement.evaluation_tokens * part)
    seconds = placement.gpu_seconds * part
    placement.rewound_tokens += tokens
    placement.rewound_evaluation_tokens += evaluated
    placement.rewound_gpu_seconds += seconds
    _add(session, task, placement, 0, 0, 0.0, tokens, evaluated, seconds * len(placement.device_indexes))


def trained_in(session: Session, tenant_id: str, month: date) -> int:
    """Tokens that the tenant trained in the month, without those that rewinds undid, from its counter."""
    own = (TenantUsage.tenant_id == tenant_id, TenantUsage.month == month)
    return int(session.scalars(select(func.coalesce(func.sum(TenantUsage.tokens), 0)).where(*own)).one())


def drift(session: Session, month: date) -> list[str]:
    """Tenants whose monthly counter differs from the sum over their tasks. There must be none."""
    counted = select(TenantUsage.tenant_id, func.sum(TenantUsage.tokens).label("tokens")).where(TenantUsage.month == month)
    summed = select(
        TaskUsageRecord.tenant_id, func.sum(TaskUsageRecord.tokens - TaskUsageRecord.rewound_tokens).label("tokens")
    )
    one = counted.group_by(TenantUsage.tenant_id).subquery()
    other = summed.where(TaskUsageRecord.month == month).group_by(TaskUsageRecord.tenant_id).subquery()
    both = select(func.coalesce(one.c.tenant_id, other.c.tenant_id).label("tenant_id"))
    both = both.select_from(one.join(other, one.c.tenant_id == other.c.tenant_id, full=True))
    return list(session.scalars(both.where(one.c.tokens.is_distinct_from(other.c.tokens)).order_by("tenant_id")))


def _add(
    session: Session,
    task: Task,
    placement: Placement,
    tokens: int,
    evaluation_tokens: int,
    gpu_seconds: float,
    rewound_tokens: int = 0,
    rewound_evaluation_tokens: int = 0,
    rewound_gpu_seconds: float = 0.0,
) -> None:
    session.flush()
    values = {
        "task": task.id,
        "tenant": task.tenant_id,
        "month": month_at(placement.created_at),
        "shard": zlib.crc32(task.id.encode()) % SHARDS,
        "tokens": tokens,
        "evaluation_tokens": evaluation_tokens,
        "gpu_seconds": gpu_seconds,
        "rewound_tokens": rewound_tokens,
        "rewound_evaluation_tokens": rewound_evaluation_tokens,
        "rewound_gpu_seconds": rewound_gpu_seconds,
        "billed": tokens - rewound_tokens,
    }
    _ADD.run(session.connection(), values)
