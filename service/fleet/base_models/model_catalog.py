"""The allow-list of base models: reads and pins an admin's model folder, and keeps the list. Loads no weights and runs no model
code."""

import struct
from collections.abc import Sequence
from pathlib import Path

from sqlalchemy import ColumnElement, Select, delete, or_, select
from sqlalchemy.orm import Session

from contract.messages.placement_messages import PASSED_ON, STORAGE_SCHEME
from contract.model_revision import NoWeights, revision_of, weight_files
from contract.states import TASK_TERMINAL
from service.files.folder_tokenizer import content_in, template_kind
from service.fleet.base_models.base_files import NEEDED, SAFE
from service.fleet.base_models.model_config import ModelConfig, header_length, parameters_in
from service.fleet.models import BaseCopy, BaseModel, BaseModelFile
from service.http.problems import Conflict, Invalid, NotFound, invalid_field, shown
from service.merges.models import OPEN, MergedModel
from service.tasks.models import Task

COPYING, STORED, FAILED = "copying", "stored", "failed"  # a BaseCopy
_NAMED = 5  # tasks named in a refusal


class RevisionInUse(Conflict):
    code, title = "revision_in_use", "Tasks depend on the model as it was"


def read_folder(name: str, source: str) -> BaseModel:
    """An unsaved row for the model in this folder. Reads every byte of it. Raises Invalid if the model is not usable."""
    folder = Path(source)
    if not folder.is_absolute():
        raise _wrong("not_absolute", "must be an absolute path, the same on every node; for hf://… there is POST /v1/models")
    try:
        missing = [needed for needed in NEEDED if not (folder / needed).is_file()]
        if missing:
            raise _wrong("incomplete", f"{shown(source)} holds no {' and no '.join(missing)}")
        config = ModelConfig.read((folder / "config.json").read_bytes(), "source")
        parameters = sum(_parameters(path) for path in weight_files(folder))
        revision, kind = revision_of(folder), template_kind(content_in(folder))
    except OSError as error:
        raise _wrong("unreadable", f"{shown(source)} cannot be read here: {error.strerror}") from None
    except NoWeights:
        raise _wrong("no_weights", f"{shown(source)} holds no *.safetensors files, the only format that is loaded") from None
    except (ValueError, struct.error) as error:
        raise _wrong("damaged", f"{shown(source)} holds a damaged file: {error}") from None
    return BaseModel(
        name=name,
        source=str(folder),
        revision=revision,
        architecture=config.architecture,
        model_type=config.model_type,
        parameters=parameters,
        max_position=config.max_position,
        enabled=True,
        gated=False,
        template_kind=kind,
    )


def allow(session: Session, found: BaseModel, files: Sequence[BaseModelFile] = (), store: bool | None = None) -> BaseModel:
    """Add the model to the list, or update its entry. `files`: of one that nodes fetch. `store`: whether they are kept in
    storage, where an uploaded one already is; None: as before. Raises RevisionInUse while tasks or merges need the previous
    bytes."""
    known = session.scalar(select(BaseModel).where(BaseModel.name == found.name).with_for_update())
    if known is None:
        session.add(found)
        session.flush()
        session.add_all(files)
        _note_copy(session, found, changed=True, store=store)
        session.flush()
        session.refresh(found)
        return found
    before, now = ({(file.path, file.sha256) for file in which} for which in (files_of(session, known.name), files))
    changed, differ = before != now, {path for path, _ in before ^ now}
    if known.revision != found.revision or (before and differ - {*PASSED_ON}):
        _refuse_in_use(session, known, "Give the new weights a name of their own, or wait for those tasks.")
    known.source, known.revision, known.enabled = found.source, found.revision, True
    known.architecture, known.model_type = found.architecture, found.model_type
    known.parameters, known.max_position = found.parameters, found.max_position
    known.template_kind = found.template_kind
    known.commit, known.license, known.gated = found.commit, found.license, found.gated
    session.execute(delete(BaseModelFile).where(BaseModelFile.base_model == known.name))
    session.add_all(files)
    _note_copy(session, known, changed, store)
    session.flush()
    return known


def remove(session: Session, name: str) -> None:
    """Take the model off the list, and release its files. Its row stays: what was trained on it names it. Raises NotFound, and
    RevisionInUse while tasks or merges need it."""
    known = session.scalar(select(BaseModel).where(BaseModel.name == name, BaseModel.enabled).with_for_update())
    if known is None:
        raise NotFound(f"There is no base model {shown(name)!r}; GET /v1/models lists what there is.")
    _refuse_in_use(session, known, "Wait for them, or cancel them.")
    known.enabled = False
    session.execute(delete(BaseModelFile).where(BaseModelFile.base_model == name))
    session.execute(delete(BaseCopy).where(BaseCopy.base_model == name))


def _note_copy(session: Session, base: BaseModel, changed: bool, store: bool | None) -> None:
    """The row of the base's copy in storage, as the request wants it. One that is asked for is made anew: the copier fetches
    what storage lost."""
    held = session.get(BaseCopy, base.name, with_for_update=True)
    uploaded = base.source.startswith(STORAGE_SCHEME)
    if not uploaded and (base.commit is None or store is False or (store is None and held is None)):
        wanted = None
    else:
        wanted = STORED if uploaded else COPYING
    kept = (wanted,) if store else (wanted, STORED)
    if held is not None and held.status in kept and wanted is not None and not changed:
        return
    if held is not None:
        session.delete(held)
        session.flush()
    if wanted is not None:
        session.add(BaseCopy(base_model=base.name, status=wanted))


def files_of(session: Session, name: str) -> list[BaseModelFile]:
    """The files of a base that nodes fetch, by path; none of one in a folder of theirs."""
    held = select(BaseModelFile).where(BaseModelFile.base_model == name).order_by(BaseModelFile.path)
    return list(session.scalars(held))


def stored_objects() -> Select[str]:
    """The sha256 of every file of a base that storage holds, or will: all of one with a copy, otherwise those that are no
    weights."""
    copied = select(BaseCopy.base_model).where(BaseCopy.status.in_([COPYING, STORED]))
    kept: ColumnElement[bool] = or_(~BaseModelFile.path.endswith(SAFE), BaseModelFile.base_model.in_(copied))
    return select(BaseModelFile.sha256).where(kept)


def is_stored(session: Session, name: str) -> bool:
    """Whether nodes fetch this base from storage."""
    return session.scalar(select(BaseCopy.status).where(BaseCopy.base_model == name)) == STORED


def is_file_of(session: Session, name: str, sha256: str) -> bool:
    """Whether this is a file of the base. Nodes that were told to fetch it from storage go on with that once it is no longer
    kept there, while garbage collection leaves the object."""
    one = select(BaseModelFile.path).where(BaseModelFile.base_model == name, BaseModelFile.sha256 == sha256)
    return session.scalar(one.limit(1)) is not None


def _refuse_in_use(session: Session, known: BaseModel, way_out: str) -> None:
    needs = select(Task.id).where(Task.base_model == known.name, Task.status.not_in(list(TASK_TERMINAL)))
    tasks = list(session.scalars(needs.order_by(Task.id)))
    if tasks:
        named = ", ".join(tasks[:_NAMED]) + (f" and {len(tasks) - _NAMED} more" if len(tasks) > _NAMED else "")
        raise RevisionInUse(
            f"{known.name} is pinned at revision {known.revision[:12]} by tasks that have not ended: {named}. {way_out}",
            tasks=tasks,
        )
    row = MergedModel
    merges = select(row.id).where(row.base_model == known.name, row.base_revision == known.revision, row.status.in_(OPEN))
    if (merged := session.scalar(merges.where(row.deleted_at.is_(None)).limit(1))) is not None:
        raise RevisionInUse(
            f"{known.name} is needed by the merge {merged}, which has not ended. Wait for it, or delete it.", tasks=[]
        )


def _parameters(path: Path) -> int:
    """The number of parameters in a safetensors file, from its header."""
    with path.open("rb") as file:
        return parameters_in(file.read(header_length(file.read(8), path.name)))


def _wrong(code: str, message: str) -> Invalid:
    return invalid_field("source", code, message)
