"""The new-task form: its estimate, its rows as training reads them, its copies as curl, Python and YAML, its submission."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import yaml
from fastapi import Request, Response
from fastapi.responses import RedirectResponse
from pydantic import ValidationError
from sqlalchemy import select
from sqlalchemy.orm import Session

from contract.task_spec import TaskSpec
from service.app_state import BaseFoldersDep, BaseTokenizers, GradersDep, QueueDep, Store
from service.authentication import Db, Writer
from service.files import actions as files
from service.files import row_preview
from service.files.models import File
from service.fleet.base_models.base_folders import BaseTokenizer
from service.fleet.models import BaseModel
from service.http.concurrency_limits import Submitting
from service.http.problem_handlers import field_error
from service.http.problems import FieldError, Problem
from service.scheduler.dry_run import dry_run
from service.scheduler.estimate_resource import EstimateResource
from service.scheduler.routes import EstimatorDep
from service.tasks import actions
from service.tasks.models import Task
from service.tasks.stored_specs import effective
from service.tasks.submission import spec_checks
from service.tasks.submission.spec_checks import SpecChecker
from service.tenants.api_keys import Principal
from service.tenants.tenant_scope import find
from service.web.estimate_times import EstimateTimes
from service.web.forms import Form
from service.web.page_route import pages
from service.web.rendering import render
from service.web.session.viewer import Looking
from service.web.views.spec_form import form_fields
from service.web.views.spec_form.form_to_spec import spec_of_form
from service.web.views.spec_form.request_copies import as_curl, as_python
from service.web.views.spec_form.spec_to_form import choices_of, fields_of

router = pages()

_FILES = 200  # offered in the form
_ROWS = 5
_ERRORS = 20
_PLACES = {name: place for place, name in enumerate(form_fields.LABELS)}  # of the fields on the page


@dataclass
class TaskForm:
    """The form as it was sent, and what it asks for. `errors` by field; those of no field of the form under an empty name."""

    fields: dict[str, str]
    schedules: list[str]
    modules: list[str]
    metrics: list[str]
    spec: dict[str, Any] = field(default_factory=dict)
    checked: TaskSpec | None = None
    errors: list[FieldError] = field(default_factory=list)

    @classmethod
    def read(cls, form: Form) -> "TaskForm":
        draft = cls(
            {name: form.one(name) for name in form.data}, form.all("schedule"), form.all("modules"), form.all("metrics")
        )
        draft.spec, mistakes = spec_of_form(draft.fields, draft.schedules, draft.modules, draft.metrics)
        draft.errors += [FieldError(field=path, code="unreadable", message=said) for path, said in mistakes.items()]
        try:
            checked = TaskSpec.model_validate(draft.spec)
        except ValidationError as error:
            found = [field_error({**one, "loc": ("body", *one["loc"])}, [TaskSpec]) for one in error.errors()]
            told = tuple(f"{path}." for path in mistakes)  # also of the object around a field that is told of
            draft.errors += [one for one in found if not any(path.startswith(f"{one.field}.") for path in told)][:_ERRORS]
        else:
            draft.checked = None if mistakes else checked
        draft.errors.sort(key=lambda one: _place(one.field))
        return draft

    def refused(self, problem: Problem) -> None:
        self.errors += problem.errors or [FieldError(code=problem.code, message=problem.detail)]

    def error_of(self, name: str) -> str | None:
        """What is wrong with a field, or with one of its list's values."""
        return (
            "; ".join(e.message for e in self.errors if e.field is not None and form_fields.field_name(e.field) == name) or None
        )

    def label_of(self, path: str) -> str | None:
        """What the form calls the field of this path, if it has it."""
        return form_fields.LABELS.get(form_fields.field_name(path))

    @property
    def first_wrong(self) -> str | None:
        """The first field on the page that is wrong."""
        wrong = [
            name for one in self.errors if one.field is not None and (name := form_fields.field_name(one.field)) in _PLACES
        ]
        return min(wrong, key=_PLACES.__getitem__, default=None)


def _place(path: str | None) -> int:
    """Where a mistake stands on the page; those of no field come last."""
    return _PLACES.get(form_fields.field_name(path or ""), len(_PLACES))


@router.get("/tasks/new")
def new_task(viewer: Looking, writer: Writer, db: Db, request: Request, like: str = "") -> Response:
    fields, chosen = dict(form_fields.DEFAULTS), choices_of({})
    if like:
        with db.begin() as session:
            spec = effective(find(session, Task, like, writer, "task"))
        fields, chosen = fields_of(spec), choices_of(spec)
    elif file_id := request.query_params.get("file"):
        fields["dataset.file_id"] = file_id[:128]
    return _page(request, db, writer, TaskForm(fields, *chosen))


@router.post("/tasks/new/estimate")
def estimate(
    viewer: Looking,
    writer: Writer,
    db: Db,
    form: Form,
    request: Request,
    estimator: EstimatorDep,
) -> Response:
    draft, found = TaskForm.read(form), None
    if draft.checked is not None:
        try:
            found = estimator.estimate(draft.checked, SpecChecker.check, dry_run)
        except Problem as problem:
            draft.refused(problem)
    return _page(request, db, writer, draft, estimate=found)


@router.post("/tasks/new/preview")
def preview(
    viewer: Looking,
    writer: Writer,
    db: Db,
    storage: Store,
    known: BaseTokenizers,
    folders: BaseFoldersDep,
    form: Form,
    request: Request,
) -> Response:
    draft, found = TaskForm.read(form), None
    try:
        asked = row_preview.PreviewRequest.model_validate(
            {
                "file_id": draft.fields.get("dataset.file_id", ""),
                "base_model": draft.fields.get("base_model", ""),
                "objective": draft.spec.get("objective", {}),
                "max_seq_len": draft.spec.get("training", {}).get("max_seq_len", 1024),
                "rows": _ROWS,
            }
        )
        with db.begin() as session:
            file, model = spec_checks.for_preview(
                session, writer, asked.file_id, asked.base_model, asked.objective, asked.max_seq_len
            )
            held, revision = BaseTokenizer.of(session, model), model.revision
        found = row_preview.preview(storage, known, asked, file, folders.folder_of(held, storage), revision)
    except ValidationError:
        there = draft.fields.get("dataset.file_id") and draft.fields.get("base_model")
        said = (
            "A preview reads rows as training would: mend the form first."
            if there
            else "A preview needs a file and a base model."
        )
        draft.errors.append(FieldError(code="incomplete", message=said))
    except Problem as problem:
        draft.refused(problem)
    return _page(request, db, writer, draft, shown=found)


@router.post("/tasks/new")
def submit(
    viewer: Looking,
    writer: Writer,
    db: Db,
    queue: QueueDep,
    graders: GradersDep,
    form: Form,
    request: Request,
    limited: Submitting,
) -> Response:
    draft = TaskForm.read(form)
    if draft.checked is not None:
        try:
            with db.begin() as session:
                made = actions.create(session, queue, graders, writer, draft.checked)
            return RedirectResponse(f"/tasks/{made.id}", 303)
        except Problem as problem:
            draft.refused(problem)
    return _page(request, db, writer, draft, status=422)


def _page(
    request: Request,
    db: Db,
    writer: Principal,
    draft: TaskForm,
    *,
    status: int = 200,
    estimate: EstimateResource | None = None,
    shown: row_preview.PreviewResource | None = None,
) -> Response:
    with db.begin() as session:
        stored, models = _files(session, writer), _models(session)
    api_url = str(request.base_url).rstrip("/")
    spec = draft.spec
    return render(
        request,
        "new_task.html",
        status=status,
        draft=draft,
        files=stored,
        models=models,
        estimate=estimate,
        times=None if estimate is None else EstimateTimes.of(estimate, datetime.now(UTC)),
        shown=shown,
        jobs=draft.checked.search_space.size if draft.checked is not None else None,
        copies={
            "curl": as_curl(spec, api_url),
            "Python": as_python(spec, api_url),
            "YAML": yaml.safe_dump(spec, sort_keys=False, allow_unicode=True),
        }
        if draft.checked is not None
        else {},
        module_sets=_offered(draft.modules, form_fields.MODULE_SETS),
        schedules=_offered(draft.schedules, form_fields.SCHEDULES),
        policies=form_fields.POLICIES,
        metrics={name: form_fields.METRICS.get(name, name) for name in _offered(draft.metrics, form_fields.METRICS)},
    )


def _offered(chosen: Sequence[str], known: Iterable[str]) -> list[str]:
    """The boxes of a group: those chosen first, as their order is that of the jobs."""
    return list(dict.fromkeys([*chosen, *known]))


def _files(session: Session, writer: Principal) -> list[File]:
    return list(session.scalars(files.files_of(writer).order_by(File.created_at.desc()).limit(_FILES)))


def _models(session: Session) -> list[BaseModel]:
    return list(session.scalars(select(BaseModel).where(BaseModel.enabled).order_by(BaseModel.name)))
