"""One visit of a tracking server: what of a task it lacks is sent, as far as the time of a visit allows. Knows no server's API.

Each answer is recorded before the next call, so a visit that breaks off anywhere is continued by the next one.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace

from service.mirrors.mirrored_task import TaskReader
from service.mirrors.tracker import MirroredJob, MirroredTask, Tracker

VISIT_SECONDS = 30.0  # after which the rest is left to the next visit


@dataclass(frozen=True)
class Visited:
    """version: of the task that was seen. left: there is more to send. finished: the task has ended, and all of it is there."""

    version: int
    left: bool = False
    finished: bool = False


class MirrorVisit:
    def __init__(self, reader: TaskReader, tracker: Tracker) -> None:
        self._reader, self._tracker, self._until = reader, tracker, time.monotonic() + VISIT_SECONDS

    def run(self) -> Visited:
        """Raises CallFailed, and ClaimLost."""
        task = self._reader.task(self._tracker.beat)
        if task.started is None:  # no job has, or will any more: there is nothing to show
            return Visited(task.version, finished=task.ended is not None)
        task, found = self._open(task)
        for job in task.jobs:
            if not self._job(task, found, job):
                return Visited(task.version, left=True)
        if task.ended is not None:
            self._tracker.end_task(task)
        return Visited(task.version, finished=task.ended is not None)

    def _late(self) -> bool:
        return time.monotonic() >= self._until

    def _open(self, task: MirroredTask) -> tuple[MirroredTask, Mapping[str, str]]:
        """The task with its place and its run there; and, by job, ids of runs that are there and nobody recorded."""
        if task.place is None:
            task = replace(task, place=self._tracker.place(task))
            self._reader.note_place(task.at)
        found: Mapping[str, str] = {}
        if task.run_id is None or any(job.run_id is None for job in task.jobs):
            found = self._tracker.unrecorded(task)
        if task.run_id is None:
            task = replace(task, run_id=found.get("") or self._tracker.start_task(task))
            self._reader.note_run(task.run, None)
        return task, found

    def _job(self, task: MirroredTask, found: Mapping[str, str], job: MirroredJob) -> bool:
        """Bring one job up to date, or send at least something of it; returns whether there is time for more."""
        if job.run_id is None:
            job = replace(job, run_id=found.get(job.id) or self._tracker.start_job(task, job))
            self._reader.note_run(job.run, job)
        if job.in_doubt and (there := self._tracker.last_steps(job)) is not None:
            self._reader.settle(job, there)
        silent = True
        while (batch := self._reader.next_batch(job)) is not None:
            job = replace(job, position=self._tracker.log(task, job, batch), empty=False)
            self._reader.note_sent(job, batch)
            silent = False
            if self._late():
                return False
        if job.ended is not None:
            self._tracker.end_job(task, job)
            self._reader.note_ended(job)
        elif silent and self._tracker.beat is not None:
            self._tracker.keep_alive(task, job)
            self._reader.note_beat(job)
        return not self._late()
