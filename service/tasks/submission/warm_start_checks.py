"""Checks the adapter that a spec starts from: the tenant's own, of the same base, in a shape that every job has.

Knows no weights: the worker reads them and checks them again.
"""

from collections.abc import Iterator
from typing import Any

from sqlalchemy.orm import Session

from contract.messages.peft_settings import PeftSettings
from contract.search_space import SearchSpace
from contract.states import JOB_TERMINAL
from contract.task_spec import TaskSpec
from service.adapters.models import Adapter
from service.database.checked_json import ResultUnreadable
from service.fleet.models import BaseModel
from service.http.problems import FieldError
from service.tasks.adapter_queries import deletion_of, undeleted_tasks_adapters
from service.tasks.models import Job
from service.tenants.api_keys import Principal

FIELD = "warm_start.adapter_id"


def warm_start_errors(session: Session, principal: Principal, spec: TaskSpec, model: BaseModel) -> Iterator[FieldError]:
    """What is wrong with `spec.warm_start`, if it has one; locks the adapter against deletion until the transaction ends."""
    if spec.warm_start is None:
        return
    wanted = spec.warm_start.adapter_id
    held = undeleted_tasks_adapters(principal).where(Adapter.id == wanted).with_for_update(read=True, of=Adapter)
    adapter = session.scalar(held)
    if adapter is None:
        message = f"there is no adapter {wanted!r} that this key could see; GET /v1/adapters lists them"
        yield FieldError(field=FIELD, code="adapter_unknown", message=message)
        return
    if adapter.deleted_at is not None:
        message = f"adapter {adapter.id} {deletion_of(adapter)}; GET /v1/adapters lists those that are left"
        yield FieldError(field=FIELD, code="adapter_unknown", message=message)
        return
    maker = session.get(Job, adapter.job_id) if adapter.job_id is not None else None
    if maker is not None and maker.status not in JOB_TERMINAL:  # an older worker reports the adapter before the job's end
        message = f"is of job {maker.id}, which has not ended and may be rewound, its adapter with it; wait for the job's end"
        yield FieldError(field=FIELD, code="adapter_unfinished", message=message)
    try:
        lineage, settings = adapter.folder.lineage, adapter.settings
    except ResultUnreadable as error:
        yield FieldError(field=FIELD, code="adapter_unreadable", message=unreadable(error))
        return
    if lineage.base_revision != model.revision:
        message = f"is for {lineage.base_model} of another revision than {model.name} has now; its weights would not fit"
        yield FieldError(field=FIELD, code="adapter_of_other_base", message=message)
    yield from _shape_errors(spec.search_space, settings)


def unreadable(why: ResultUnreadable) -> str:
    """Why nothing starts from an adapter whose row cannot be read."""
    return f"cannot be started from: {why}; start from another one"


def _shape_errors(space: SearchSpace, start: PeftSettings) -> Iterator[FieldError]:
    """A job continues an adapter of its own rank, and of no module that it leaves out."""
    for field, rank in _tried(space, "rank"):
        if rank != start.rank:
            message = f"is {rank}, but the adapter to start from has rank {start.rank}; set it to {start.rank}"
            yield FieldError(field=field, code="rank_differs", message=message)
    for field, modules in _tried(space, "target_modules"):
        if missing := [module for module in start.target_modules or () if module not in modules]:
            message = f"leaves out {', '.join(missing)}, for which the adapter to start from has matrices; name them too"
            yield FieldError(field=field, code="modules_left_out", message=message)


def _tried(space: SearchSpace, axis: str) -> list[tuple[str, Any]]:
    """The values of an axis, each with its field."""
    if space.jobs is None:
        return [(f"search_space.{axis}[{index}]", value) for index, value in enumerate(getattr(space, axis))]
    return [(f"search_space.jobs[{index}].{axis}", getattr(job, axis)) for index, job in enumerate(space.jobs)]
