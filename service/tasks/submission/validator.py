"""Validates tasks in a thread of a background process: no plan and no recovery waits while a large file is read.

Any number of validators may run. A task is claimed by an advisory lock for as long as its files are read: where a process ends
in the middle, the lock ends with its connection, and the task is another validator's.
"""

import logging
import threading
from datetime import timedelta

from sqlalchemy import func, select
from sqlalchemy.exc import SQLAlchemyError

from contract.states import TaskStatus
from service.database.engine import clock
from service.dependencies import Dependencies
from service.tasks.models import Task
from service.tasks.submission.stored_file_check import validate_due

log = logging.getLogger(__name__)


class Validator:
    def __init__(self, dependencies: Dependencies, missed_after: float | None = None) -> None:
        """missed_after: seconds for which new tasks are left to the validators that their wake-ups reach; None: to nobody."""
        self._dependencies, self._missed_after = dependencies, missed_after
        self._due, self._stopping = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None

    def wake(self) -> None:
        """Look for tasks to validate in the background; a thread that died is replaced."""
        self._due.set()
        if not self._stopping.is_set() and (self._thread is None or not self._thread.is_alive()):
            self._thread = threading.Thread(target=self._work, name="validator", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Ask the thread to end, and to leave what it reads to others; returns at once."""
        self._stopping.set()
        self._due.set()

    def close(self, seconds: float = 5.0) -> None:
        """Stop, and wait for the thread at most so many seconds: storage may stand still."""
        self.stop()
        if self._thread is not None:
            self._thread.join(seconds)

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

    def _work(self) -> None:
        while True:
            self._due.wait()
            self._due.clear()
            if self._stopping.is_set():
                return
            try:
                self.run_due()
            except SQLAlchemyError as error:
                log.error("tasks are validated later, the database does not answer: %s", error)
