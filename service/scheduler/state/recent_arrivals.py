"""The latest arrivals, from rows: those placed lately and those that wait, each with the duration expected of it then.

Input of foresight. Foresees nothing itself.
"""

from collections.abc import Mapping
from datetime import datetime

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from service.fleet.models import Placement
from service.scheduler.core.foresight import RECENT
from service.scheduler.core.problem import Arrived
from service.tasks.models import Task

Asked = tuple[datetime, int, int]  # creation, GPUs, expected seconds


def recent_arrivals(session: Session, now: datetime, waiting: Mapping[str, Asked]) -> tuple[Arrived, ...]:
    """At most `RECENT`, oldest first. `waiting` are the tasks that wait, by id.

    A task placed several times counts once, as it was first expected. Ids of placements ascend with time, so that their primary
    key finds the newest.
    """
    rows = session.execute(
        select(Placement.task_id, Task.created_at, func.cardinality(Placement.device_indexes), Placement.expected_seconds)
        .join(Task, Task.id == Placement.task_id)
        .where(Placement.expected_seconds.is_not(None))
        .order_by(Placement.id.desc())
        .limit(RECENT)
    )
    # of a task's placements the oldest comes last, and stays
    placed: Mapping[str, Asked] = {id: (created, gpus, round(seconds)) for id, created, gpus, seconds in rows}
    newest = sorted({**waiting, **placed}.values())[-RECENT:]
    return tuple(Arrived(max(0, round((now - at).total_seconds())), gpus, max(1, seconds)) for at, gpus, seconds in newest)
