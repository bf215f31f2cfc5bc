"""Reads why plans are requested now: what changed, and whether an arrival may fit. Its writer is messaging/plan_requests.py."""

from sqlalchemy import func, or_, select
from sqlalchemy.orm import Session

from contract.states import TaskStatus
from service.fleet.models import Node, Placement
from service.messaging.plan_requests import ARRIVED
from service.scheduler.models import PlanRequest
from service.scheduler.replan_pacing import PlanCauses
from service.tasks.models import Task
from service.tasks.plan_status.unplanned_reasons import NOT_PLANNED


def plan_causes(session: Session) -> PlanCauses:
    """Why plans are requested now. The session must see all tenants' rows."""
    devices = select(Placement.node_id, func.unnest(Placement.device_indexes).label("device"))
    live = devices.where(Placement.ended_at.is_(None)).subquery()
    held = select(live.c.node_id, func.count(live.c.device.distinct()).label("devices")).group_by(live.c.node_id).subquery()
    free = func.max(func.jsonb_array_length(Node.devices) - func.coalesce(held.c.devices, 0))
    open_ = Node.status == "ready", Node.drained_at.is_(None), Node.stopping_since.is_(None)
    most = select(free).outerjoin_from(Node, held, held.c.node_id == Node.id).where(*open_).scalar_subquery()
    unseen = or_(Task.waiting.is_(None), Task.waiting["code"].astext == NOT_PLANNED)
    least = select(func.min(Task.gpus)).where(Task.status == TaskStatus.QUEUED, unseen).scalar_subquery()
    changed = select(PlanRequest.id).where(PlanRequest.reason != ARRIVED).exists()
    found = session.execute(select(changed, func.coalesce(least <= most, False))).one()
    return PlanCauses(*found)
