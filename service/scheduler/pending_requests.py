"""Reads why plans are requested now: what changed, and whether an arrival may fit. Its writer is messaging/plan_requests.py."""

from sqlalchemy import func, or_, select, union_all
from sqlalchemy.orm import Session

from contract.states import TaskStatus
from service.fleet.models import NUMBER_OF_DEVICES, Node, Placement
from service.messaging.plan_requests import ARRIVED
from service.scheduler.models import PlanRequest
from service.scheduler.replan_pacing import PlanCauses
from service.tasks.models import Task
from service.tasks.plan_status.unplanned_reasons import NOT_PLANNED


def plan_causes(session: Session) -> PlanCauses:
    """Why plans are requested now. The session must see all tenants' rows."""
    devices = select(Placement.node_id, func.unnest(Placement.device_indexes).label("device"))
    live = devices.where(Placement.ended_at.is_(None)).subquery()
    open_ = Node.status == "ready", Node.drained_at.is_(None), Node.stopping_since.is_(None)
    all_ = select(Node.id, NUMBER_OF_DEVICES.label("devices")).where(*open_)
    held = select(live.c.node_id, -func.count(live.c.device.distinct())).group_by(live.c.node_id)
    both = union_all(all_, held).subquery()  # summed, as a join would read one for each row of the other if it expects few
    free = select(func.sum(both.c.devices).label("free")).group_by(both.c.id).subquery()
    most = select(func.max(free.c.free)).scalar_subquery()
    unseen = or_(Task.waiting.is_(None), Task.waiting["code"].astext == NOT_PLANNED)
    least = select(func.min(Task.gpus)).where(Task.status == TaskStatus.QUEUED, unseen).scalar_subquery()
    changed = select(PlanRequest.id).where(PlanRequest.reason != ARRIVED).exists()
    found = session.execute(select(changed, func.coalesce(least <= most, False))).one()
    return PlanCauses(*found)
