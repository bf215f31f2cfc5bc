"""What a request's `model` names: a base, a tuned model, an adapter, or a job whose newest checkpoint is asked."""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Select, select
from sqlalchemy.orm import Session

from service.adapters.actions import AdapterDeleted
from service.adapters.models import Adapter
from service.completions.requests import AskedModel
from service.database.checked_json import ResultUnreadable, readable
from service.fleet.models import BaseModel
from service.http.openai_ids import own_id
from service.http.problems import FieldError, Invalid, NotFound, invalid_field
from service.openai.list_envelope import unix
from service.openai.models.model_objects import ModelObject
from service.openai.models.tuned_start import TunedStart
from service.openai.openai_names import tuned
from service.tasks.adapter_queries import undeleted_tasks_adapters
from service.tasks.models import Job, Task
from service.tasks.stored_specs import effective, part
from service.tasks.submission.spec_checks import SpecRefused
from service.tasks.submission.warm_start_checks import FIELD, unreadable
from service.tenants.api_keys import Principal
from service.tenants.tenant_scope import missing, scoped

_UNREADABLE = "unreadable"


@dataclass(frozen=True)
class TunedModel:
    """An adapter at this face. task: the one that made it, None where it was uploaded: then its base may be held in any
    precision."""

    adapter: Adapter
    task: Task | None

    @property
    def name(self) -> str:
        """Its base's part is "unreadable" where the manifest of an upload cannot be read."""
        if self.task is not None:
            return tuned(self.task.base_model, self.task.name, self.adapter.id)
        manifest = readable(self.adapter.manifest)
        base = manifest.lineage.base_model if manifest is not None else _UNREADABLE
        return tuned(base, self.adapter.name, self.adapter.id)

    def asked(self, precision: str | None) -> AskedModel:
        """What a request for it asks. Raises Invalid."""
        if self.task is not None:
            return _with(self.task, precision, adapter_id=self.adapter.id)
        base = self.adapter.folder.lineage
        return AskedModel(base.base_model, base.base_revision, precision or "bf16", self.adapter.id)


def tuned_object(model: TunedModel) -> ModelObject:
    return ModelObject(id=model.name, created=unix(model.adapter.created_at), owned_by=model.adapter.tenant_id)


def tuned_adapter(session: Session, principal: Principal, name: str) -> TunedModel:
    """The tuned model of this name, or with the adapter of this id. Raises NotFound or AdapterDeleted."""
    if ":" in name:
        return tuned_model(session, principal, name)
    return _kept(_adapter(session, undeleted_tasks_adapters(principal), name), name)


def tuned_model(session: Session, principal: Principal, name: str) -> TunedModel:
    """The tuned model of this name. Raises NotFound or AdapterDeleted."""
    return _kept(listed_model(session, undeleted_tasks_adapters(principal), name), name)


def listed_model(session: Session, adapters: Select[Adapter], name: str) -> TunedModel | None:
    """The tuned model of this name among these adapters."""
    found = _adapter(session, adapters, name.rpartition(":")[2])
    return found if found is not None and name == found.name else None


def tuned_start(session: Session, principal: Principal, name: str) -> TunedStart | None:
    """What a job starts from whose `model` is this name; None for a base, known or not. Raises SpecRefused."""
    name = own_id(name)
    if not name.startswith(("ft:", "adapter_")) or session.scalar(select(BaseModel.name).where(BaseModel.name == name)):
        return None
    try:
        found = tuned_adapter(session, principal, name)
    except NotFound as error:
        raise SpecRefused([FieldError(field="base_model", code="model_unknown", message=error.detail)]) from None
    adapter, precision = found.adapter, found.task.precision if found.task is not None else "bf16"
    try:
        return TunedStart(adapter.id, adapter.folder.lineage.base_model, precision, adapter.settings)
    except ResultUnreadable as error:
        why = FieldError(field="base_model", code="adapter_unreadable", message=unreadable(error))
        raise SpecRefused([why]) from None


def as_of_model(refused: SpecRefused) -> SpecRefused:
    """The refusal of a job that starts from its `model`, which holds no field `warm_start`."""
    errors = [one.model_copy(update={"field": "base_model"}) if one.field == FIELD else one for one in refused.errors]
    return SpecRefused(errors)


def starts_of(session: Session, tasks: Sequence[Task]) -> dict[str, str]:
    """Of the tasks that start from an adapter, by id: the tuned model's name, also where it was deleted since."""
    wanted = {task.id: part(task, "warm_start").get("adapter_id") for task in tasks}
    ids = {id for id in wanted.values() if id is not None}
    if not ids:
        return {}
    made = select(Adapter, Task).outerjoin(Task, Task.id == Adapter.task_id).where(Adapter.id.in_(ids))
    names = {row.Adapter.id: TunedModel(row.Adapter, row.Task).name for row in session.execute(made)}
    return {task_id: names[id] for task_id, id in wanted.items() if id in names}


def asked_model(session: Session, principal: Principal, name: str, precision: str | None) -> AskedModel:
    """The model of this name: `precision` is how a base is stored that is asked alone. Raises NotFound or Invalid."""
    base = session.scalar(select(BaseModel).where(BaseModel.name == name, BaseModel.enabled))
    if base is not None:
        return AskedModel(base.name, base.revision, precision or "bf16")
    name = own_id(name)
    if name.startswith("job_"):
        return _job(session, principal, name, precision)
    return tuned_adapter(session, principal, name).asked(precision)


def _kept(found: TunedModel | None, name: str) -> TunedModel:
    if found is None:
        raise missing("model", name)
    if found.adapter.deleted_at is not None:
        raise AdapterDeleted.of(found.adapter)
    return found


def _adapter(session: Session, adapters: Select[Adapter], id: str) -> TunedModel | None:
    adapter = session.scalar(adapters.where(Adapter.id == id))
    if adapter is None:
        return None
    return TunedModel(adapter, session.get_one(Task, adapter.task_id) if adapter.task_id is not None else None)


def _job(session: Session, principal: Principal, id: str, precision: str | None) -> AskedModel:
    """A job's adapter once it has one, until then its newest checkpoint."""
    own = select(Job, Task).join(Task, Task.id == Job.task_id).where(Job.id == id, Task.deleted_at.is_(None))
    found = session.execute(scoped(own, Job, principal)).one_or_none()
    if found is None:
        raise missing("model", id)
    kept = select(Adapter.id).where(Adapter.job_id == id, Adapter.deleted_at.is_(None))
    adapter_id = session.scalar(scoped(kept, Adapter, principal))
    if adapter_id is not None:
        return _with(found.Task, precision, adapter_id=adapter_id)
    if found.Job.checkpoint is None:
        why = f"job {id} ({found.Job.status}) has stored no checkpoint yet, or ended without an adapter"
        raise invalid_field("model", "no_checkpoint", why)
    return _with(found.Task, precision, job_id=id)


def _with(task: Task, precision: str | None, adapter_id: str | None = None, job_id: str | None = None) -> AskedModel:
    if task.precision == "fp8":
        raise invalid_field(
            "model",
            "precision_unsupported",
            "was trained on a base in fp8, on which Motet generates no texts; download and serve it (docs/OPERATIONS.md)",
        )
    if precision is not None and precision != task.precision:
        raise _other_precision(task.precision)
    dedicated = effective(task).get("isolation") == "dedicated"
    return AskedModel(task.base_model, task.base_revision, task.precision, adapter_id, job_id, dedicated)


def _other_precision(trained: str) -> Invalid:
    return invalid_field(
        "precision",
        "precision_differs",
        f"the model was trained on its base in {trained}, and is asked so; leave precision out",
    )
