"""The allow-list of base models: reads and pins an admin's model folder. Loads no weights and runs no model code."""

import json
import math
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from contract.model_revision import NoWeights, revision_of, weight_files
from contract.model_types import MODEL_TYPES
from contract.states import TASK_TERMINAL
from service.fleet.models import BaseModel
from service.http.problems import Conflict, Invalid, invalid_field, shown
from service.tasks.models import Task

_NEEDED = ("config.json", "tokenizer.json")
_HEADER_LIMIT = 100 * 2**20
_NAMED = 5  # tasks named in a refusal


class RevisionInUse(Conflict):
    code, title = "revision_in_use", "Tasks depend on the model as it was"


def read_folder(name: str, source: str) -> BaseModel:
    """An unsaved row for the model in this folder. Reads every byte of it. Raises Invalid if the model is not usable."""
    folder = Path(source)
    if not folder.is_absolute():
        raise _wrong("not_absolute", "must be an absolute path, the same on every node")
    try:
        missing = [needed for needed in _NEEDED if not (folder / needed).is_file()]
        if missing:
            raise _wrong("incomplete", f"{shown(source)} holds no {' and no '.join(missing)}")
        config = json.loads((folder / "config.json").read_text())
        if (kind := _of(config, "model_type", str, str)) not in MODEL_TYPES:
            works = ", ".join(MODEL_TYPES)
            raise _wrong("unsupported_architecture", f"its config.json has model_type {shown(kind)!r}; what works: {works}")
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
        architecture=_of(config, "architectures", list, lambda found: str(found[0])),
        model_type=kind,
        parameters=parameters,
        max_position=_of(config, "max_position_embeddings", int, int),
        enabled=True,
    )


def allow(session: Session, found: BaseModel) -> BaseModel:
    """Add the model to the list, or update its entry. Raises RevisionInUse while tasks need the previous bytes."""
    known = session.scalar(select(BaseModel).where(BaseModel.name == found.name).with_for_update())
    if known is None:
        session.add(found)
        session.flush()
        session.refresh(found)
        return found
    if known.revision != found.revision:
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
    return known


def _parameters(path: Path) -> int:
    """The number of parameters in a safetensors file, from its header: 8 bytes of length, then JSON with tensor shapes."""
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        if length > _HEADER_LIMIT:
            raise ValueError(f"{path.name} is not a safetensors file")
        tensors = json.loads(file.read(length))
    return sum(math.prod(tensor["shape"]) for name, tensor in tensors.items() if name != "__metadata__")


def _of(config: Mapping[str, Any], key: str, kind: type, read: Any) -> Any:
    value = config.get(key)
    if not isinstance(value, kind) or not value:
        raise _wrong("config_incomplete", f"its config.json has no usable {key!r}")
    return read(value)


def _wrong(code: str, message: str) -> Invalid:
    return invalid_field("source", code, message)
