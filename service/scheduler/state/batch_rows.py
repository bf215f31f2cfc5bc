"""Batches as the planner sees them, and what it notes of their plans."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from contract.states import TaskStatus
from service.batches.models import Batch
from service.scheduler.core.decision import BatchPlan
from service.tasks.models import Task


@dataclass(frozen=True)
class Batches:
    """The batches of waiting and running tasks. Those in `gathering` have tasks whose files are not checked yet."""

    rows: Mapping[str, Batch]
    gathering: frozenset[str]

    @classmethod
    def of(cls, session: Session, tasks: Iterable[Task], asked: Batch | None = None) -> "Batches":
        """`asked` is a batch without a row."""
        ids = {task.batch_id for task in tasks if task.batch_id is not None}
        rows = {batch.id: batch for batch in session.scalars(select(Batch).where(Batch.id.in_(ids)))} if ids else {}
        unchecked = select(Task.batch_id).where(Task.batch_id.in_(ids), Task.status == TaskStatus.VALIDATING)
        gathering = frozenset(id for id in session.scalars(unchecked) if id is not None) if ids else frozenset[str]()
        return cls(rows | ({} if asked is None else {asked.id: asked}), gathering)

    def gathers(self, task: Task) -> bool:
        """Whether the task waits for others of its batch, so that all are planned together."""
        return task.batch_id in self.gathering

    def arranged(self, task: Task) -> str | None:
        """The batch whose makespan the task counts for, if any."""
        batch = self.rows.get(task.batch_id) if task.batch_id is not None else None
        return batch.id if batch is not None and batch.objective == "makespan" else None

    def deadline(self, task: Task, own: datetime | None) -> datetime | None:
        """The earlier of the task's own deadline and its batch's."""
        batch = self.rows.get(task.batch_id) if task.batch_id is not None else None
        known = [moment for moment in (own, batch.deadline if batch is not None else None) if moment is not None]
        return min(known, default=None)


def note_plans(session: Session, at: datetime, plans: Iterable[BatchPlan]) -> None:
    """Store how a plan of this moment arranged each batch."""
    for plan in plans:
        bound = None if plan.bound is None else round(plan.bound)
        said = {
            "at": at.isoformat(),
            "makespan_seconds": plan.makespan,
            "method": plan.method,
            "solver_status": plan.status,
            "bound_seconds": bound,
        }
        session.execute(update(Batch).where(Batch.id == plan.batch).values(plan=said))
