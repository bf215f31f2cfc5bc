"""/openai/v1/models: the enabled base models, and the tenant's winning adapters."""

from fastapi import APIRouter
from sqlalchemy import select, tuple_

from service.adapters import actions
from service.adapters.models import Adapter
from service.authentication import Db, Reader, Writer
from service.fleet.models import BaseModel
from service.http.problems import invalid_field
from service.openai.asked_models import tuned_model
from service.openai.error_objects import PREFIX
from service.openai.list_envelope import USUAL, After, ListOf, LongLimit, list_of, unix
from service.openai.resource_objects import DeletedModel, ModelObject, model_object, tuned, tuned_object
from service.tasks.models import Task
from service.tenants.tenant_scope import scoped

router = APIRouter(prefix=f"{PREFIX}/models", include_in_schema=False)


@router.get("")
def list_models(reader: Reader, db: Db, after: After = None, limit: LongLimit = USUAL) -> ListOf[ModelObject]:
    """The bases, then the winning adapters, those of the newest tasks first. OpenAI's list of models has no pages: a client
    that knows none gets the newest and `has_more`; every other one can be retrieved by its name."""
    with db.begin() as session:
        own = select(Adapter.id, Adapter.tenant_id, Adapter.created_at, Task.base_model, Task.name)
        own = own.select_from(Task).join(Adapter, Adapter.job_id == Task.winner_job_id)
        own = own.where(Task.deleted_at.is_(None), Adapter.deleted_at.is_(None))
        bases: list[ModelObject] = []
        if after is None:
            enabled = select(BaseModel).where(BaseModel.enabled).order_by(BaseModel.name)
            bases = [model_object(base) for base in session.scalars(enabled)]
        else:
            _, last = tuned_model(session, reader, after)
            own = own.where(tuple_(Task.created_at, Task.id) < tuple_(last.created_at, last.id))
        newest = scoped(own.order_by(Task.created_at.desc(), Task.id.desc()).limit(limit + 1), Task, reader)
        found = session.execute(newest).all()
    winners = [
        ModelObject(id=tuned(row.base_model, row.name, row.id), created=unix(row.created_at), owned_by=row.tenant_id)
        for row in found[:limit]
    ]
    return list_of([*bases, *winners], len(found) > limit)


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
