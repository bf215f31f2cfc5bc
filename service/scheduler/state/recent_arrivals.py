"""The latest arrivals, from rows: those placed lately and those that wait, each with the duration expected of it then.

Input of core/expected_arrivals.py. Predicts nothing itself. Also: how long those that came back had waited before.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from service.fleet.models import Placement
from service.scheduler.core.expected_arrivals import RECENT
from service.scheduler.core.problem import Arrived
from service.tasks.models import Task

Arrival = tuple[datetime, int, int]  # creation, GPUs, expected seconds


def recent_arrivals(session: Session, now: datetime, waiting: Mapping[str, Arrival]) -> tuple[Arrived, ...]:
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
    placed: Mapping[str, Arrival] = {id: (created, gpus, round(seconds)) for id, created, gpus, seconds in rows}
    newest = sorted({**waiting, **placed}.values())[-RECENT:]
    return tuple(Arrived(max(0, round((now - at).total_seconds())), gpus, max(1, seconds)) for at, gpus, seconds in newest)


def waited_before(session: Session, tasks: Iterable[Task]) -> dict[str, float]:
    """Seconds that requeued tasks waited before they were last queued."""
    came_back = [task.id for task in tasks if task.requeue_reason is not None]
    if not came_back:
        return {}
    sums = select(Placement.task_id, func.sum(Placement.waited_seconds)).where(Placement.task_id.in_(came_back))
    return {task: float(seconds or 0.0) for task, seconds in session.execute(sums.group_by(Placement.task_id))}
