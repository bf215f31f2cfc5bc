"""What tenants do with batches: create, list, cancel. The API's routes call it. Knows no HTTP."""

from collections.abc import Sequence

from sqlalchemy import Select, select
from sqlalchemy.orm import Session
from structlog.contextvars import get_contextvars

from contract.batch_spec import BatchSpec
from service.batches.models import Batch
from service.database.engine import new_id
from service.graders.endpoint_graders import EndpointGraders
from service.http.problems import FieldError, Problem
from service.messaging.queue import Queue
from service.messaging.wakeups import NodeWakeups
from service.tasks import actions as tasks
from service.tasks.models import Task
from service.tasks.submission.spec_checks import ResolvedRefs, SpecChecker, SpecRefused
from service.tenants.api_keys import Principal
from service.tenants.tenant_scope import find, scoped
from service.tracing.request_trace import take_traceparent


def create(session: Session, queue: Queue, graders: EndpointGraders, principal: Principal, spec: BatchSpec) -> Batch:
    """Create the batch with all its tasks, or nothing. Raises SpecRefused, which names tasks[i], and QuotaExceeded."""
    batch = Batch(
        id=new_id("batch"),
        tenant_id=principal.tenant_id,
        name=spec.name,
        objective=spec.objective,
        deadline=spec.deadline,
        labels=dict(spec.labels),
    )
    request_id, traceparent = get_contextvars().get("request_id"), take_traceparent()
    wanted = [tasks.NewTaskRequest(one, request_id, traceparent, batch.id) for one in spec.tasks]
    made = tasks.create_all(session, queue, graders, principal, wanted)
    _refuse([one if isinstance(one, Problem) else None for one in made])
    batch.task_ids = [one.id for one in made if isinstance(one, Task)]
    session.add(batch)
    session.flush()
    return batch


def _refuse(problems: Sequence[Problem | None]) -> None:
    """Raise SpecRefused with the mistakes of all tasks, or the first other refusal, if any task was refused."""
    errors: list[FieldError] = []
    for index, refused in enumerate(problems):
        if isinstance(refused, SpecRefused):
            errors += [error.model_copy(update={"field": f"tasks[{index}].{error.field}"}) for error in refused.errors]
        elif refused is not None:
            raise refused
    if errors:
        raise SpecRefused(errors)


def checked(checker: SpecChecker, spec: BatchSpec) -> list[ResolvedRefs]:
    """What the tasks refer to. Raises SpecRefused, which names tasks[i]."""
    found: list[ResolvedRefs] = []
    refused: list[Problem | None] = [None] * len(spec.tasks)
    for index, one in enumerate(spec.tasks):
        try:
            found.append(checker.check(one))
        except SpecRefused as mistake:
            refused[index] = mistake
    _refuse(refused)
    return found


def batches_of(principal: Principal) -> Select[Batch]:
    """Query of the caller's batches."""
    return scoped(select(Batch), Batch, principal)


def batch_tasks(session: Session, batch: Batch) -> list[Task]:
    """The batch's tasks in the order in which they were posted, without deleted ones."""
    found = select(Task).where(Task.id.in_(batch.task_ids), Task.tenant_id == batch.tenant_id, Task.deleted_at.is_(None))
    by_id = {task.id: task for task in session.scalars(found.execution_options(populate_existing=True))}
    return [by_id[id] for id in batch.task_ids if id in by_id]


def cancel(session: Session, queue: Queue, wakeups: NodeWakeups, principal: Principal, batch_id: str) -> Batch:
    """Cancel every task of the batch that has not ended, all in one transaction. Idempotent. Raises NotFound."""
    batch = find(session, Batch, batch_id, principal, "batch")
    tasks.cancel_all(session, queue, wakeups, principal, [task.id for task in batch_tasks(session, batch)])
    return batch
