"""Which adapters a caller may see and start from: those of its tasks, and those that were uploaded."""

from sqlalchemy import Select, select

from service.adapters.models import Adapter
from service.tasks.models import Task
from service.tenants.api_keys import Principal
from service.tenants.tenant_scope import scoped


def adapters_of(principal: Principal) -> Select[Adapter]:
    """The caller's adapters, without deleted ones and those of deleted tasks."""
    return undeleted_tasks_adapters(principal).where(Adapter.deleted_at.is_(None))


def deletion_of(adapter: Adapter) -> str:
    """That a deleted adapter was deleted, and when, in words."""
    return f"was deleted on {adapter.deleted_at:%Y-%m-%d %H:%M:%S} UTC; what it weighed is gone"


def undeleted_tasks_adapters(principal: Principal) -> Select[Adapter]:
    """The caller's adapters, deleted ones too, without those of deleted tasks."""
    there = select(Adapter).outerjoin(Task, Task.id == Adapter.task_id).where(Task.deleted_at.is_(None))
    return scoped(there, Adapter, principal)
