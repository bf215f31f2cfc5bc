"""A task's spans: what the service and the task's executors did for it, below the span of the request that created it.

    POST /v1/tasks
      task                          from its creation to its end
        check files, wait, plan     by the service
        placement                   on a node, until it left
          pull, load base, warmup…  by the node and its executor

The spans of a task and of a placement have ids derived from theirs, so that every process can name them as parents. Spans are
exported after the commit of what they tell; a crash may lose some. Nothing of a tenant's data is in them.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime

from sqlalchemy.orm import Session

from contract.messages.span_messages import PhaseSpan
from contract.states import RequeueReason, TaskStatus
from service.database.engine import after_commit
from service.fleet.models import Placement
from service.tasks.models import Task
from service.tracing import span_exporter
from service.tracing.spans import Attributes, Span, SpanContext

_WORKER = "motet-worker"
_INT64 = 2**63
_LONGEST = 64  # characters of a count's name
_LOST = (RequeueReason.EXECUTOR_LOST, RequeueReason.NODE_LOST)


def placement_traceparent(task: Task, placement: Placement) -> str | None:
    """Of the placement's span, for the node; None where the task is not traced, or this process exports no spans."""
    context = _task(task.id, task.traceparent) if span_exporter.on() else None
    return context.of(placement.id).traceparent if context is not None else None


def files_checked(session: Session, tasks: Iterable[tuple[str, str | None]], began: float, ended: float) -> None:
    """Tasks' files were read back before the tasks were queued. tasks: ids and `traceparent`s. began, ended: epoch seconds."""
    _export(session, [_within(context, "check files", began, ended) for context in _contexts(tasks)])


def planned(session: Session, tasks: Iterable[Task], began: float, ended: float, method: str, waiting: int) -> None:
    """A plan placed these tasks. began, ended: epoch seconds. waiting: other tasks that it left in the queue."""
    said: Attributes = {"motet.plan.method": method, "motet.plan.tasks_left_waiting": waiting}
    contexts = _contexts((task.id, task.traceparent) for task in tasks)
    _export(session, [_within(context, "plan", began, ended, said) for context in contexts])


def waited(session: Session, task: Task, until: datetime) -> None:
    """The task left the queue for a node."""
    if (context := _task(task.id, task.traceparent)) is not None:
        since = task.queued_at or task.created_at
        _export(session, [_within(context, "wait", since.timestamp(), until.timestamp(), {"motet.gpus": task.gpus})])


def pulled(session: Session, placement_id: str, at: datetime) -> None:
    """The placement's node, or its executor, said for the first time that it has it."""
    placement = session.get(Placement, placement_id) if span_exporter.on() else None
    if placement is not None and (task := session.get(Task, placement.task_id)) is not None:
        _phase(session, task, placement, "pull", placement.created_at, at)


def phases_ended(session: Session, task: Task, placement: Placement, node: str, spans: Sequence[PhaseSpan]) -> None:
    """The placement's executor reported phases. What OTLP cannot express is brought within its bounds: a collector would refuse
    the batch with all tenants' spans, and a refused report would cost the placement."""
    context = _task(task.id, task.traceparent)
    if context is None or not spans:
        return
    parent = context.of(placement.id)
    _export(
        session,
        [
            Span(
                span.name,
                parent.child(),
                parent.span_id,
                _within_epoch(span.began),
                _within_epoch(span.ended),
                {
                    "motet.placement_id": placement.id,
                    **({"motet.job": span.job} if span.job is not None and abs(span.job) < _INT64 else {}),
                    **{f"motet.{name[:_LONGEST]}": _count(count) for name, count in span.counts.items()},
                },
                process=_WORKER,
                host=node,
            )
            for span in spans
        ],
    )


def placement_ended(session: Session, placement: Placement, at: datetime) -> None:
    """The placement ended, for its `end_reason`."""
    task = session.get(Task, placement.task_id) if span_exporter.on() else None
    context = _task(task.id, task.traceparent) if task is not None else None
    if context is None:
        return
    said: Attributes = {
        "motet.placement_id": placement.id,
        "motet.node_id": placement.node_id,
        "motet.gpus": len(placement.device_indexes),
        "motet.end_reason": str(placement.end_reason),
        "motet.steps": placement.steps,
        "motet.tokens": placement.tokens,
    }
    began, error = placement.created_at.timestamp(), placement.end_reason in _LOST
    own = context.of(placement.id)
    _export(session, [Span("placement", own, context.span_id, began, at.timestamp(), said, error)])


def task_ended(session: Session, task: Task) -> None:
    """The task has entered a final status."""
    context, request = _task(task.id, task.traceparent), SpanContext.read(task.traceparent)
    if context is None or request is None or task.ended_at is None:
        return
    said: Attributes = {
        "motet.task_id": task.id,
        "motet.tenant_id": task.tenant_id,
        "motet.request_id": task.request_id or "",
        "motet.status": str(task.status),
    }
    began, ended = task.created_at.timestamp(), task.ended_at.timestamp()
    _export(session, [Span("task", context, request.span_id, began, ended, said, task.status == TaskStatus.FAILED)])


def _task(task_id: str, traceparent: str | None) -> SpanContext | None:
    """The context of the task's span."""
    request = SpanContext.read(traceparent)
    return request.of(task_id) if request is not None else None


def _contexts(tasks: Iterable[tuple[str, str | None]]) -> list[SpanContext]:
    found = (_task(task_id, traceparent) for task_id, traceparent in tasks)
    return [context for context in found if context is not None]


def _within(parent: SpanContext, name: str, began: float, ended: float, said: Attributes | None = None) -> Span:
    return Span(name, parent.child(), parent.span_id, began, ended, said or {})


def _phase(session: Session, task: Task, placement: Placement, name: str, began: datetime, ended: datetime) -> None:
    if (context := _task(task.id, task.traceparent)) is not None:
        parent, said = context.of(placement.id), {"motet.placement_id": placement.id}
        _export(session, [_within(parent, name, began.timestamp(), ended.timestamp(), said)])


def _within_epoch(seconds: float) -> float:
    """The nearest time whose nanoseconds OTLP can hold."""
    return min(max(seconds, 0.0), _INT64 // 10**9)


def _count(said: float) -> int | float:
    """A whole number as such, unless it fits no int64."""
    return int(said) if said.is_integer() and abs(said) < _INT64 else said


def _export(session: Session, spans: Sequence[Span]) -> None:
    if spans and span_exporter.on():
        after_commit(session, lambda: span_exporter.record(*spans))
