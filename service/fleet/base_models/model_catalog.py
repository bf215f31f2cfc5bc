"""The allow-list of base models: reads and pins an admin's model folder. Loads no weights and runs no model code."""

import struct
from collections.abc import Sequence
from pathlib import Path

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from contract.model_revision import NoWeights, revision_of, weight_files
from contract.states import TASK_TERMINAL
from service.fleet.base_models.model_config import ModelConfig, header_length, parameters_in
from service.fleet.models import BaseModel, BaseModelFile
from service.http.problems import Conflict, Invalid, invalid_field, shown
from service.tasks.models import Task

_NEEDED = ("config.json", "tokenizer.json")
_NAMED = 5  # tasks named in a refusal


class RevisionInUse(Conflict):
    code, title = "revision_in_use", "Tasks depend on the model as it was"


def read_folder(name: str, source: str) -> BaseModel:
    """An unsaved row for the model in this folder. Reads every byte of it. Raises Invalid if the model is not usable."""
    folder = Path(source)
    if not folder.is_absolute():
        raise _wrong("not_absolute", "must be an absolute path, the same on every node; for hf://… there is POST /v1/models")
    try:
        missing = [needed for needed in _NEEDED if not (folder / needed).is_file()]
        if missing:
            raise _wrong("incomplete", f"{shown(source)} holds no {' and no '.join(missing)}")
        config = ModelConfig.read((folder / "config.json").read_bytes(), "source")
        parameters = sum(_parameters(path) for path in weight_files(folder))
        revision = revision_of(folder)
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
    )


def allow(session: Session, found: BaseModel, files: Sequence[BaseModelFile] = ()) -> BaseModel:
    """Add the model to the list, or update its entry. `files`: of one on the hub. Raises RevisionInUse while tasks need the
    previous bytes."""
    known = session.scalar(select(BaseModel).where(BaseModel.name == found.name).with_for_update())
    if known is None:
        session.add(found)
        session.flush()
        session.add_all(files)
        session.flush()
        session.refresh(found)
        return found
    if known.revision != found.revision or _changed(session, known, files):
        needs = select(Task.id).where(Task.base_model == known.name, Task.status.not_in(list(TASK_TERMINAL)))
        tasks = list(session.scalars(needs.order_by(Task.id)))
        if tasks:
            named = ", ".join(tasks[:_NAMED]) + (f" and {len(tasks) - _NAMED} more" if len(tasks) > _NAMED else "")
            raise RevisionInUse(
                f"{found.name} is pinned at revision {known.revision[:12]} by tasks that have not ended: {named}. "
                "Give the new weights a name of their own, or wait for those tasks.",
                tasks=tasks,
            )
    known.source, known.revision, known.enabled = found.source, found.revision, True
    known.architecture, known.model_type = found.architecture, found.model_type
    known.parameters, known.max_position = found.parameters, found.max_position
    known.commit, known.license, known.gated = found.commit, found.license, found.gated
    session.execute(delete(BaseModelFile).where(BaseModelFile.base_model == known.name))
    session.add_all(files)
    session.flush()
    return known


def files_of(session: Session, name: str) -> list[BaseModelFile]:
    """The files of a base on the hub, by path; none of one in a folder."""
    held = select(BaseModelFile).where(BaseModelFile.base_model == name).order_by(BaseModelFile.path)
    return list(session.scalars(held))


def _changed(session: Session, known: BaseModel, files: Sequence[BaseModelFile]) -> bool:
    """Whether a base that was on the hub had other files, such as another tokenizer."""
    before = {(file.path, file.sha256) for file in files_of(session, known.name)}
    return bool(before) and before != {(file.path, file.sha256) for file in files}


def _parameters(path: Path) -> int:
    """The number of parameters in a safetensors file, from its header."""
    with path.open("rb") as file:
        return parameters_in(file.read(header_length(file.read(8), path.name)))


def _wrong(code: str, message: str) -> Invalid:
    return invalid_field("source", code, message)
