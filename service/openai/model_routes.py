"""/openai/v1/models: the enabled base models, and the tenant's winning adapters."""

from fastapi import APIRouter
from sqlalchemy import select

from service.adapters.models import Adapter
from service.authentication import Db, Reader
from service.fleet.models import BaseModel
from service.openai.error_objects import PREFIX
from service.openai.list_envelope import ListOf, list_of
from service.openai.resource_objects import ModelObject, model_object, tuned, tuned_object
from service.tasks.models import Task
from service.tenants.tenant_scope import missing, scoped

router = APIRouter(prefix=f"{PREFIX}/models", include_in_schema=False)


@router.get("")
def list_models(reader: Reader, db: Db) -> ListOf[ModelObject]:
    with db.begin() as session:
        bases = session.scalars(select(BaseModel).where(BaseModel.enabled).order_by(BaseModel.name))
        own = select(Adapter, Task.name).join(Task, Task.winner_job_id == Adapter.job_id)
        own = own.where(Task.deleted_at.is_(None), Adapter.deleted_at.is_(None)).order_by(Adapter.created_at.desc())
        winners = session.execute(scoped(own, Adapter, reader))
        return list_of([model_object(base) for base in bases] + [tuned_object(a, name) for a, name in winners], False)


@router.get("/{model_id:path}")
def get_model(model_id: str, reader: Reader, db: Db) -> ModelObject:
    """A base model, or any adapter of the tenant's by the name that its job or checkpoint gave it."""
    with db.begin() as session:
        base = session.scalar(select(BaseModel).where(BaseModel.name == model_id, BaseModel.enabled))
        if base is not None:
            return model_object(base)
        own = select(Adapter, Task).join(Task, Task.id == Adapter.task_id).where(Adapter.id == model_id.rpartition(":")[2])
        own = own.where(Task.deleted_at.is_(None), Adapter.deleted_at.is_(None))
        found = session.execute(scoped(own, Adapter, reader)).one_or_none()
        if found is None or model_id != tuned(found.Task.base_model, found.Task.name, found.Adapter.id):
            raise missing("model", model_id)
        return tuned_object(found.Adapter, found.Task.name)
