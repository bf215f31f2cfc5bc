"""Which waiting tasks a plan leaves out, since their rows cannot be read, and why in words."""

from service.fleet.node_health.quarantine import FAULTS_UNREADABLE, read_faults
from service.scheduler.estimate.task_workload import Workload
from service.tasks.models import Task
from service.tasks.stored_specs import damaged_columns, needs_version, newer_fields


def needs_other(work: Workload, task: Task) -> str | None:
    """Why this version must not start the task; None if it may. A field that it does not know may restrict when or where."""
    if task.id in work.unread:
        return needs_version(task, work.unread[task.id])
    if newer := newer_fields(task, work.specs[task.id]):
        return needs_version(task, f"it does not know {', '.join(newer)}")
    return None


def damage_of(task: Task) -> str | None:
    """Why the row of a waiting task cannot be read by any version; None if it can."""
    if columns := damaged_columns(task):
        return (
            f"The stored spec of this task (tasks.{columns[0]}) cannot be read, so no node is chosen for it. An operator "
            "repairs it; or cancel the task and submit it again."
        )
    return FAULTS_UNREADABLE if read_faults(task) is None else None
