"""Checks a spec against what it refers to: files, base model, warm start, sizes. Reports all mistakes at once.

Knows no nodes: whether one is free is the planner's question.
"""

import difflib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any

from sqlalchemy import bindparam, select
from sqlalchemy.orm import Session

from contract.job_config import JobConfig
from contract.task_spec import Objective, TaskSpec
from service.database.prepared_statements import PreparedStatement
from service.files import actions as files
from service.files.folder_tokenizer import TemplateKind
from service.files.imports import actions as imports
from service.files.models import File
from service.files.row_checks import Format
from service.fleet.models import BaseModel as BaseModelRow
from service.graders.endpoint_graders import EndpointGraders
from service.http.openai_ids import hint
from service.http.problems import FieldError, Invalid
from service.mirrors import task_mirrors
from service.tasks import stored_specs
from service.tasks.submission.warm_start_checks import warm_start_errors
from service.tenants.api_keys import Principal
from service.tenants.tenant_scope import tenant_parameter

_LISTED = 20  # models named in a refusal
_MODEL_MATCHES = (BaseModelRow.name == bindparam("name")) & BaseModelRow.enabled
_ENABLED = select(BaseModelRow).where(_MODEL_MATCHES)
_OF_FILE, _OF_MODEL = File.__table__.c, BaseModelRow.__table__.c
_FIND_FILES_AND_MODEL = PreparedStatement(
    files.PINNED.outerjoin_from(File, BaseModelRow, _MODEL_MATCHES).with_only_columns(*_OF_FILE, *_OF_MODEL)
)


class SpecRefused(Invalid):
    """The spec is well-formed, but cannot be satisfied."""

    code, title = "task_refused", "The task could not run"


Unknown = Callable[[str, str], Iterator[FieldError]]  # (field, file's id) -> why there is no such file
_Found = tuple[dict[str, File], BaseModelRow | None]  # files by id, and the base model


@dataclass(frozen=True)
class ResolvedRefs:
    """What a new task refers to; the files are locked against deletion until the transaction ends."""

    train: File
    validation: File | None
    model: BaseModelRow
    prompts: File | None = None  # of its evaluation


def columns_of(spec: TaskSpec, refs: ResolvedRefs) -> dict[str, Any]:
    """The columns of a task that follow from its spec."""
    return stored_specs.stored(spec) | {
        "base_model": refs.model.name,
        "base_revision": refs.model.revision,
        "train_file_id": refs.train.id,
        "validation_file_id": refs.validation.id if refs.validation else None,
        "prompts_file_id": refs.prompts.id if refs.prompts else None,
        "gpus": spec.gpus,
        "priority": spec.priority,
    }


class SpecChecker:
    """Checks specs of one tenant in one transaction, and caches lookups that several specs share."""

    def __init__(self, session: Session, principal: Principal, graders: EndpointGraders) -> None:
        self._session, self._principal, self._graders = session, principal, graders
        self._found: dict[tuple[str | None, ...], _Found] = {}

    def check(self, spec: TaskSpec) -> ResolvedRefs:
        """Look up what the spec names, and lock its files, adapter and tracking servers. Raises SpecRefused: every mistake."""
        session, wanted = self._session, spec.dataset
        asked = spec.evaluation.file_id if spec.evaluation is not None else None
        names = wanted.file_id, wanted.validation_file_id, asked, spec.base_model
        if names not in self._found:
            self._found[names] = _find(session, self._principal, spec)
        held, model = self._found[names]
        train = held.get(wanted.file_id)
        validation, prompts = held.get(wanted.validation_file_id or ""), held.get(asked or "")
        unknown = partial(_unknown, session, self._principal)
        errors = [
            *_file_errors(spec, train, validation, unknown),
            *(() if asked is None else _prompts_errors(asked, prompts, unknown)),
            *(
                _model_unknown(session, spec.base_model)
                if model is None
                else _length_errors("training.max_seq_len", spec.training.max_seq_len, model)
            ),
            *(() if model is None else _template_errors("dataset.file_id", train, model)),
            *(() if model is None else _template_errors("dataset.validation_file_id", validation, model)),
            *(() if model is None else _template_errors("evaluation.file_id", prompts, model)),
            *(() if train is None else _size_errors(spec, train)),
            *_repetition_errors(spec),
            *(() if model is None else warm_start_errors(session, self._principal, spec, model)),
            *self._graders.mistakes(spec),
            *task_mirrors.mistakes(session, self._principal, spec),
        ]
        if errors:
            raise SpecRefused(errors)
        assert train is not None  # its absence is an error above
        assert model is not None
        return ResolvedRefs(train, validation, model, prompts)


def deadline_over(deadline: datetime | None, at: datetime, field: str = "deadline") -> Iterator[FieldError]:
    """A warning about a deadline that is over by then. It is no mistake: the task can still be trained."""
    if deadline is not None and deadline <= at:
        message = f"was over already at {at:%Y-%m-%d %H:%M:%S} UTC: the task is late from the beginning"
        yield FieldError(field=field, code="deadline_over", message=message)


def base_changed() -> SpecRefused:
    """The refusal of a task whose base was removed, or got another revision, between its check and its insertion."""
    message = "was removed, or got other weights, as the task was posted; GET /v1/models lists what there is"
    return SpecRefused([FieldError(field="base_model", code="model_changed", message=message)])


def for_preview(
    session: Session, principal: Principal, file_id: str, base_model: str, objective: Objective, max_seq_len: int
) -> tuple[File, BaseModelRow]:
    """The file and the model of a preview, checked as a task's would be. Raises SpecRefused, which lists every mistake."""
    file = files.pin(session, principal, [file_id]).get(file_id)
    model = _find_model(session, base_model)
    errors = [
        *(_unknown(session, principal, "file_id", file_id) if file is None else _format_errors("file_id", file, objective)),
        *(_model_unknown(session, base_model) if model is None else _length_errors("max_seq_len", max_seq_len, model)),
    ]
    if errors:
        raise SpecRefused(errors)
    assert file is not None  # its absence is an error above
    assert model is not None
    return file, model


def for_adapter(session: Session, base_model: str) -> BaseModelRow:
    """The base of an adapter that is uploaded. Raises SpecRefused."""
    model = _find_model(session, base_model)
    if model is None:
        raise SpecRefused(list(_model_unknown(session, base_model)))
    return model


def _find(session: Session, principal: Principal, spec: TaskSpec) -> _Found:
    """The files by id that the spec names, and its base model, as far as they exist."""
    asked = spec.evaluation.file_id if spec.evaluation is not None else None
    ids = [id for id in (spec.dataset.file_id, spec.dataset.validation_file_id, asked) if id is not None]
    found = _FIND_FILES_AND_MODEL.run(session.connection(), tenant_parameter(principal) | {"ids": ids, "name": spec.base_model})
    held = [File(**dict(zip(_OF_FILE.keys(), row[: len(_OF_FILE)], strict=True))) for row in found]
    if not found:  # the model is joined to the files: with no file found there is no row, so it is read alone
        model = _find_model(session, spec.base_model)
    else:
        of_model = dict(zip(_OF_MODEL.keys(), found[0][len(_OF_FILE) :], strict=True))
        model = BaseModelRow(**of_model) if of_model["name"] is not None else None
    return {file.id: file for file in held}, model


def _find_model(session: Session, name: str) -> BaseModelRow | None:
    return session.scalar(_ENABLED, {"name": name})


def _format_errors(field: str, file: File, objective: Objective) -> Iterator[FieldError]:
    if (file.format == Format.PREFERENCE) != (objective.type == "dpo"):
        wanted, other = ("preference", "sft") if objective.type == "dpo" else ("chat, completion or text", "dpo")
        message = (
            f"is a {file.format} file, but objective {objective.type} learns from {wanted} rows; set objective.type to "
            f"{other}, or name a file of {wanted} rows"
        )
        yield FieldError(field=field, code="format_of_other_objective", message=message)


def _file_errors(spec: TaskSpec, train: File | None, validation: File | None, unknown: Unknown) -> Iterator[FieldError]:
    wanted = spec.dataset
    if train is None:
        yield from unknown("dataset.file_id", wanted.file_id)
    else:
        yield from _format_errors("dataset.file_id", train, spec.objective)
    if wanted.validation_file_id is None:
        return
    field = "dataset.validation_file_id"
    if validation is None:
        yield from unknown(field, wanted.validation_file_id)
    elif train is not None and validation.sha256 == train.sha256:
        message = "holds the very rows that are trained on; leave it out, and a fraction of the rows is held out instead"
        yield FieldError(field=field, code="same_rows", message=message)
    elif train is not None and validation.format != train.format:
        message = f"is a {validation.format} file, but the training file is a {train.format} file; both need one format"
        yield FieldError(field=field, code="format_differs", message=message)


def _prompts_errors(asked: str, prompts: File | None, unknown: Unknown) -> Iterator[FieldError]:
    field = "evaluation.file_id"
    if prompts is None:
        yield from unknown(field, asked)
    elif prompts.format not in (Format.CHAT, Format.COMPLETION):
        message = f"is a {prompts.format} file; prompts with references are rows of messages, or of prompt and completion"
        yield FieldError(field=field, code="format_without_prompts", message=message)


def _template_errors(field: str, file: File | None, model: BaseModelRow) -> Iterator[FieldError]:
    if file is None:
        return
    if file.format == Format.CHAT and model.template_kind == TemplateKind.NONE:
        message = (
            f"is a chat file, but {model.name} has no chat template; use rows of prompt and completion, or take a base with "
            "a template, which many bases have as they are tuned to follow instructions"
        )
        yield FieldError(field=field, code="template_missing", message=message)
    elif file.tools_line is not None and model.template_kind in (TemplateKind.NONE, TemplateKind.PLAIN):
        message = (
            f"has tools in line {file.tools_line}, but no chat template of {model.name} writes them, so they cannot be "
            "learned; take tools out of the rows, or take a base whose template writes them"
        )
        yield FieldError(field=field, code="tools_not_written", message=message)


def _unknown(session: Session, principal: Principal, field: str, file_id: str) -> Iterator[FieldError]:
    coming = imports.find_import(session, principal, file_id)
    if coming is not None and coming.status == imports.IMPORTING:
        message = f"is still imported; post the task once GET /v1/files/{file_id} says that it is ready"
        yield FieldError(field=field, code="file_importing", message=message)
        return
    if coming is not None and coming.status == imports.FAILED:
        message = f"could not be imported; GET /v1/files/{file_id} says why"
        yield FieldError(field=field, code="file_import_failed", message=message)
        return
    message = f"there is no file {file_id!r} that this key could see; upload it with POST /v1/files{hint(file_id)}"
    yield FieldError(field=field, code="file_unknown", message=message)


def _model_unknown(session: Session, name: str) -> Iterator[FieldError]:
    names = list(session.scalars(select(BaseModelRow.name).where(BaseModelRow.enabled).order_by(BaseModelRow.name)))
    near = difflib.get_close_matches(name, names, n=1)
    if near:
        hint = f"did you mean {near[0]!r}?"
    elif names:
        hint = f"allowed are: {', '.join(names[:_LISTED])}{', …' if len(names) > _LISTED else ''}"
    else:
        hint = "no model is allowed yet; an admin adds one with POST /v1/models or POST /v1/admin/models"
    message = f"{name!r} is not on the list of base models; {hint}"
    yield FieldError(field="base_model", code="model_unknown", message=message)


def _length_errors(field: str, asked: int, model: BaseModelRow) -> Iterator[FieldError]:
    if asked > model.max_position:
        message = f"is {asked}, but {model.name} has positions for at most {model.max_position} tokens"
        yield FieldError(field=field, code="beyond_model", message=message)


def _size_errors(spec: TaskSpec, train: File) -> Iterator[FieldError]:
    if spec.dataset.validation_file_id is None and train.rows < 2:
        message = "has one row, and none would be left to validate on; add rows, or name a validation_file_id"
        yield FieldError(field="dataset.file_id", code="too_few_rows", message=message)
    listed = spec.search_space.jobs
    if listed is None:
        sizes = [(f"batch_size[{index}]", size) for index, size in enumerate(spec.search_space.batch_size)]
    else:
        sizes = [(f"jobs[{index}].batch_size", job.batch_size) for index, job in enumerate(listed)]
    for field, size in sizes:
        if size > train.rows:
            most = f"{train.rows:,} row{'' if train.rows == 1 else 's'}"
            message = f"is {size}, but the training file has only {most}; take at most {train.rows}, or add rows"
            yield FieldError(field=f"search_space.{field}", code="beyond_rows", message=message)


def _repetition_errors(spec: TaskSpec) -> Iterator[FieldError]:
    """Listed configurations that are the same once what they leave out is filled in. Stored specs may have some."""
    first: dict[JobConfig, int] = {}
    for index, config in enumerate(spec.jobs() if spec.search_space.jobs is not None else ()):
        if (before := first.setdefault(config, index)) != index:
            message = f"is jobs[{before}] with a default written out or its modules in another order; leave one of the two out"
            yield FieldError(field=f"search_space.jobs[{index}]", code="listed_before", message=message)
