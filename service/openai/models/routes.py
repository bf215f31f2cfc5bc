"""/openai/v1/models: the enabled base models, and the tenant's winning adapters; who else may use a tuned model: nobody."""

from typing import Annotated, Literal

from fastapi import APIRouter, Query
from pydantic import Field
from sqlalchemy import select, tuple_

from contract.strict import Strict
from service.adapters import actions
from service.adapters.models import Adapter
from service.authentication import Db, Reader, Writer
from service.fleet.models import BaseModel
from service.http.problems import invalid_field, shown
from service.openai.error_objects import PREFIX
from service.openai.list_envelope import USUAL, After, Limit, ListOf, LongLimit, list_of, unix
from service.openai.models.asked_models import tuned_adapter, tuned_model
from service.openai.models.model_objects import DeletedModel, ModelObject, PermissionObject, model_object, tuned_object
from service.openai.openai_names import tuned
from service.tasks.models import Task
from service.tenants.tenant_scope import scoped

_PERMISSIONS = "/fine_tuning/checkpoints/{checkpoint:path}/permissions"
_NOT_SHARED = "tuned models are their tenant's alone: projects that could share them do not exist here"

router = APIRouter(prefix=PREFIX, include_in_schema=False)


class NewPermission(Strict):
    project_ids: Annotated[list[Annotated[str, Field(max_length=128)]], Field(max_length=1000)]


@router.get("/models")
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


@router.get("/models/{model_id:path}")
def get_model(model_id: str, reader: Reader, db: Db) -> ModelObject:
    """A base model, or any adapter of the tenant's by the name that its job or checkpoint gave it."""
    with db.begin() as session:
        base = session.scalar(select(BaseModel).where(BaseModel.name == model_id, BaseModel.enabled))
        if base is not None:
            return model_object(base)
        adapter, task = tuned_model(session, reader, model_id)
        return tuned_object(adapter, task.name)


@router.delete("/models/{model_id:path}")
def delete_model(model_id: str, writer: Writer, db: Db) -> DeletedModel:
    """Delete a tuned model of the tenant's: its adapter, as DELETE /v1/adapters does."""
    with db.begin() as session:
        if session.scalar(select(BaseModel.name).where(BaseModel.name == model_id)) is not None:
            raise invalid_field("model", "not_deletable", f"{model_id!r} is a base model; only tuned models can be deleted")
        adapter, _ = tuned_model(session, writer, model_id)
        actions.delete(session, writer, adapter.id)
    return DeletedModel(id=model_id)


@router.get(_PERMISSIONS)
def list_permissions(
    checkpoint: str,
    reader: Reader,
    db: Db,
    after: After = None,
    limit: Limit = 10,
    order: Literal["ascending", "descending"] = "descending",
    project_id: Annotated[str | None, Query(max_length=128)] = None,
) -> ListOf[PermissionObject]:
    """There are none. The checkpoint is named by its `fine_tuned_model_checkpoint` or its id."""
    with db.begin() as session:
        tuned_adapter(session, reader, checkpoint)
    if after is not None:
        raise invalid_field("after", "not_found", f"{after!r} is no permission of this checkpoint, which has none")
    return list_of([], False)


@router.post(_PERMISSIONS)
def create_permissions(checkpoint: str, wanted: NewPermission, writer: Writer, db: Db) -> ListOf[PermissionObject]:
    with db.begin() as session:
        tuned_adapter(session, writer, checkpoint)
    raise invalid_field("project_ids", "not_shareable", _NOT_SHARED)


@router.delete(_PERMISSIONS + "/{permission_id}")
def delete_permission(checkpoint: str, permission_id: str, writer: Writer, db: Db) -> PermissionObject:
    with db.begin() as session:
        tuned_adapter(session, writer, checkpoint)
    raise invalid_field("permission_id", "not_shareable", f"there is no permission {shown(permission_id)}; {_NOT_SHARED}")
