"""Drift: whether a running task's expected end has moved so far that the plan in force is wrong about it."""

from sqlalchemy.orm import Session

from service.database.engine import clock
from service.fleet.models import Node, Placement
from service.lru_cache import LruCache
from service.scheduler.estimate.task_workload import Workload
from service.tasks.models import Task

_PART = 0.1  # of the remaining time
_LEAST_SECONDS = 5.0  # short tasks' ends are not predicted more precisely


def end_moved(session: Session, task: Task, placement: Placement) -> bool:
    """Whether the task's expected end, from its current jobs and speeds, has moved by over 10 % of its remaining time."""
    if placement.expected_end is None:
        return True
    work = Workload(session, [task], LruCache())
    if task.id in work.unread:
        return False
    node = session.get_one(Node, placement.node_id)
    if node.unreadable:  # no plan would believe anything else
        return False
    alone = work.estimate(task, node.device_type, len(placement.device_indexes)).seconds
    seconds = alone * max(1.0, placement.current_slowdown or 1.0) if placement.beside else alone
    believed = (placement.expected_end - clock(session)).total_seconds()
    return abs(seconds - believed) > max(_LEAST_SECONDS, _PART * max(seconds, believed))
