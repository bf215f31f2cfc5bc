"""/openai/v1/models: the enabled base models, and the tenant's winning adapters."""

from fastapi import APIRouter
from sqlalchemy import select

from service.adapters import actions
from service.adapters.models import Adapter
from service.authentication import Db, Reader, Writer
from service.fleet.models import BaseModel
from service.http.problems import invalid_field
from service.openai.asked_models import tuned_model
from service.openai.error_objects import PREFIX
from service.openai.list_envelope import ListOf, list_of
from service.openai.resource_objects import DeletedModel, ModelObject, model_object, tuned_object
from service.tasks.models import Task
from service.tenants.tenant_scope import scoped

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
        adapter, task = tuned_model(session, reader, model_id)
        return tuned_object(adapter, task.name)


@router.delete("/{model_id:path}")
def delete_model(model_id: str, writer: Writer, db: Db) -> DeletedModel:
    """Delete a tuned model of the tenant's: its adapter, as DELETE /v1/adapters does."""
    with db.begin() as session:
        if session.scalar(select(BaseModel.name).where(BaseModel.name == model_id)) is not None:
            raise invalid_field("model", "not_deletable", f"{model_id!r} is a base model; only tuned models can be deleted")
        adapter, _ = tuned_model(session, writer, model_id)
        actions.delete(session, writer, adapter.id)
    return DeletedModel(id=model_id)
