"""Validates tasks in a thread of a background process: no plan and no recovery waits while a large file is read.

Any number of validators may run. A task is claimed by an advisory lock for as long as its files are read: where a process ends
in the middle, the lock ends with its connection, and the task is another validator's.
"""

from datetime import timedelta

from sqlalchemy import func, select

from contract.states import TaskStatus
from service.database.engine import clock
from service.dependencies import Dependencies
from service.messaging.woken_thread import WokenThread
from service.tasks.models import Task
from service.tasks.submission.stored_file_check import validate_due


class Validator(WokenThread):
    name, put_off = "validator", "tasks are validated later"

    def __init__(self, dependencies: Dependencies, missed_after: float | None = None) -> None:
        """missed_after: seconds for which new tasks are left to the validators that their wake-ups reach; None: to nobody."""
        super().__init__()
        self._dependencies, self._missed_after = dependencies, missed_after

    def run_due(self) -> int:
        """Validate what is due; returns how many tasks."""
        if self._missed_after is not None and not self._missed(self._missed_after):
            return 0
        return validate_due(self._dependencies.db, self._dependencies.storage, self._dependencies.queue, self._stopping)

    def _missed(self, seconds: float) -> bool:
        """Whether the wake-up of a task was lost."""
        with self._dependencies.db.begin() as session:
            since = clock(session) - timedelta(seconds=seconds)
            stuck = select(func.count()).where(Task.status == TaskStatus.VALIDATING, Task.created_at < since)
            return bool(session.scalar(stuck))
