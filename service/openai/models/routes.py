"""/openai/v1/models: the enabled bases, the tenant's uploaded and winning adapters; who else may use a tuned model: nobody."""

from typing import Annotated, Literal

from fastapi import APIRouter, Query
from pydantic import Field
from sqlalchemy import select, tuple_
from sqlalchemy.orm import Session

from contract.strict import Strict
from service.adapters import actions
from service.adapters.models import Adapter
from service.authentication import Db, Reader, Writer
from service.fleet.models import BaseModel
from service.http.problems import invalid_field, shown
from service.openai.error_objects import PREFIX
from service.openai.id_translation import OwnId, OwnIdsRoute
from service.openai.list_envelope import USUAL, After, Limit, ListOf, LongLimit, list_of, unix
from service.openai.models.asked_models import TunedModel, listed_model, tuned_adapter, tuned_model, tuned_object
from service.openai.models.model_objects import DeletedModel, ModelObject, PermissionObject, model_object
from service.openai.openai_names import tuned
from service.tasks.adapter_queries import adapters_of
from service.tasks.models import Task
from service.tenants.api_keys import Principal
from service.tenants.tenant_scope import missing, scoped

_PERMISSIONS = "/fine_tuning/checkpoints/{checkpoint:path}/permissions"
_NOT_SHARED = "tuned models are their tenant's alone: projects that could share them do not exist here"

# as long as a ModelName
AfterModel = Annotated[str | None, Query(max_length=400, description="Name of the last entry of the page before"), OwnId]

router = APIRouter(prefix=PREFIX, include_in_schema=False, route_class=OwnIdsRoute)


class NewPermission(Strict):
    project_ids: Annotated[list[Annotated[str, Field(max_length=128)]], Field(max_length=1000)]


@router.get("/models")
def list_models(reader: Reader, db: Db, after: AfterModel = None, limit: LongLimit = USUAL) -> ListOf[ModelObject]:
    """The bases, then up to `limit` uploaded adapters, the newest first, and winning ones, those of the newest tasks first.

    OpenAI's list of models has no pages: a client that knows none gets the newest and `has_more`.
    """
    with db.begin() as session:
        bases: list[ModelObject] = []
        if after is None:
            enabled = select(BaseModel).where(BaseModel.enabled).order_by(BaseModel.name)
            bases = [model_object(base) for base in session.scalars(enabled)]
        last = _last(session, reader, after) if after is not None else None
        found = _uploads(session, reader, last, limit + 1)
        found += _winners(session, reader, last, limit + 1 - len(found))
    return list_of([*bases, *found[:limit]], len(found) > limit)


def _last(session: Session, reader: Principal, after: str) -> TunedModel:
    """The last model of the page before; it may be deleted, as by a client that deletes what it lists. Raises Invalid."""
    last = listed_model(session, scoped(select(Adapter), Adapter, reader), after)
    if last is None:
        raise invalid_field("after", "not_found", missing("model", after).detail)
    return last


def _uploads(session: Session, reader: Principal, last: TunedModel | None, most: int) -> list[ModelObject]:
    """The newest uploaded adapters after the last one that was listed; none once winners were."""
    own = adapters_of(reader).where(Adapter.task_id.is_(None))
    if last is not None:
        if last.task is not None:
            return []
        own = own.where(tuple_(Adapter.created_at, Adapter.id) < tuple_(last.adapter.created_at, last.adapter.id))
    newest = session.scalars(own.order_by(Adapter.created_at.desc(), Adapter.id.desc()).limit(most))
    return [tuned_object(TunedModel(adapter, None)) for adapter in newest]


def _winners(session: Session, reader: Principal, last: TunedModel | None, most: int) -> list[ModelObject]:
    """The winning adapters of the newest tasks after the last one that was listed."""
    own = select(Adapter.id, Adapter.tenant_id, Adapter.created_at, Task.base_model, Task.name)
    own = own.select_from(Task).join(Adapter, Adapter.job_id == Task.winner_job_id)
    own = own.where(Task.deleted_at.is_(None), Adapter.deleted_at.is_(None))
    if last is not None and last.task is not None:
        own = own.where(tuple_(Task.created_at, Task.id) < tuple_(last.task.created_at, last.task.id))
    newest = scoped(own.order_by(Task.created_at.desc(), Task.id.desc()).limit(most), Task, reader)
    return [
        ModelObject(id=tuned(row.base_model, row.name, row.id), created=unix(row.created_at), owned_by=row.tenant_id)
        for row in session.execute(newest)
    ]


@router.get("/models/{model_id:path}")
def get_model(model_id: str, reader: Reader, db: Db) -> ModelObject:
    """A base model, or any adapter of the tenant's by the name that its job, checkpoint or upload gave it."""
    with db.begin() as session:
        base = session.scalar(select(BaseModel).where(BaseModel.name == model_id, BaseModel.enabled))
        if base is not None:
            return model_object(base)
        return tuned_object(tuned_model(session, reader, model_id))


@router.delete("/models/{model_id:path}")
def delete_model(model_id: str, writer: Writer, db: Db) -> DeletedModel:
    """Delete a tuned model of the tenant's: its adapter, as DELETE /v1/adapters does."""
    with db.begin() as session:
        if session.scalar(select(BaseModel.name).where(BaseModel.name == model_id)) is not None:
            raise invalid_field("model", "not_deletable", f"{model_id!r} is a base model; only tuned models can be deleted")
        actions.delete(session, writer, tuned_model(session, writer, model_id).adapter.id)
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
