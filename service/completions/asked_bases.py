"""Which bases requests wait for, and for whom of those that ask no executor answers. Starts nothing."""

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple, cast, get_args

from sqlalchemy import ColumnElement, and_, select, update
from sqlalchemy.orm import Session

from contract.task_spec import Precision
from service.completions.audience import audience_of
from service.completions.models import WAITING, CompletionRequest
from service.database.engine import clock
from service.fleet.base_models.gpu_fit import BYTES_PER_WEIGHT, holds_copy, memory_of
from service.fleet.models import AnswerSession, BaseModel, Node, Placement
from service.tasks.models import Task


class Wanted(NamedTuple):
    """A base that is asked. alone: where the adapters' tasks share with nobody, their tenant."""

    base_model: str
    base_revision: str
    precision: Precision
    alone: str | None

    @property
    def requests(self) -> list[ColumnElement[bool]]:
        """Of the rows, those that wait for it."""
        row = CompletionRequest
        base = [row.base_model == self.base_model, row.base_revision == self.base_revision, row.precision == self.precision]
        whose = row.dedicated.is_(False) if self.alone is None else and_(row.dedicated, row.tenant_id == self.alone)
        return [row.state == WAITING, *base, whose]

    @property
    def sessions(self) -> list[ColumnElement[bool]]:
        """Of the rows, the live ones that answer for it."""
        row = AnswerSession
        base = [row.base_model == self.base_model, row.base_revision == self.base_revision, row.precision == self.precision]
        whose = row.dedicated.is_(False) if self.alone is None else and_(row.dedicated, row.tenant_id == self.alone)
        return [row.ended_at.is_(None), *base, whose]


def asked_bases(session: Session) -> dict[Wanted, list[str]]:
    """What requests wait for, with the tenants that ask; the longest waiting first. Requests in a precision that only a newer
    version knows wait for it."""
    row = CompletionRequest
    known = row.precision.in_(get_args(Precision))
    waits = select(row).where(row.state == WAITING, row.asker_until > clock(session), known).order_by(row.created_at)
    found: dict[Wanted, list[str]] = defaultdict(list)
    for one in session.scalars(waits):
        alone = one.tenant_id if one.dedicated else None
        tenants = found[Wanted(one.base_model, one.base_revision, cast(Precision, one.precision), alone)]
        if one.tenant_id not in tenants:
            tenants.append(one.tenant_id)
    return dict(found)


def unanswered(session: Session, wanted: Wanted, tenants: Sequence[str]) -> list[str]:
    """The tenants for which neither a session nor a task's executor answers, or is about to. The session is not idle."""
    held = update(AnswerSession).where(*wanted.sessions).values(used_at=clock(session)).returning(AnswerSession.id)
    if session.scalars(held).first() is not None:
        return []
    live = select(Placement, Task, Node).join(Task, Task.id == Placement.task_id).join(Node, Node.id == Placement.node_id)
    live = live.where(Placement.ended_at.is_(None))
    live = live.where(Task.base_revision == wanted.base_revision, Task.base_model == wanted.base_model)
    base = session.get(BaseModel, wanted.base_model)
    weights = base.parameters * BYTES_PER_WEIGHT[wanted.precision] if base is not None else 0.0
    executors: dict[tuple[str, tuple[int, ...]], list[tuple[Placement, str]]] = defaultdict(list)
    for placed, task, node in session.execute(live):
        if task.precision == wanted.precision and holds_copy(weights, memory_of(node)):  # shards write no texts
            executors[placed.node_id, tuple(sorted(placed.device_indexes))].append((placed, task.tenant_id))
    audiences = [
        audience_of([(tenant, placed.max_slowdown is not None) for placed, tenant in there])
        for there in executors.values()
        if any(placed.leaving is None for placed, _ in there)
    ]
    return [one for one in tenants if not any(audience.has(one, wanted.alone is not None) for audience in audiences)]
