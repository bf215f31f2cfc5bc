"""Notices of changed tasks: a version, the status event, a Postgres notice for long polls and streams. Knows no reader."""

from collections.abc import Mapping
from types import MappingProxyType

from sqlalchemy import ARRAY, String, func, literal, select
from sqlalchemy.orm import Session

from service.database.engine import CHANNEL
from service.tasks.lifecycle.event_log import record_status
from service.tasks.models import Task

IDS_PER_NOTICE = 200  # task ids per notice (Postgres allows 8,000 bytes); a plan changes all waiting tasks
_NONE: Mapping[str, str] = MappingProxyType({})


def bump_version_and_notify(session: Session, *tasks: Task, details: Mapping[str, str] = _NONE) -> None:
    """Raise each task's version, record its status if it is new, and notify watchers after the commit.

    The caller holds the tasks' row locks. `details` are sentences for status events, by task.
    """
    for task in tasks:
        task.version += 1
        record_status(session, task, details.get(task.id))
    if tasks:
        ids = [task.id for task in tasks]
        notices = [" ".join(ids[at : at + IDS_PER_NOTICE]) for at in range(0, len(ids), IDS_PER_NOTICE)]
        session.execute(select(func.pg_notify(CHANNEL, func.unnest(literal(notices, ARRAY(String))))))
