"""A base as a node is told of it: its name, where its files are, which revision; and what a worker must know to fetch it."""

from sqlalchemy.orm import Session

from contract.compatibility.capabilities import HUB_BASES, STORED_BASES
from contract.messages.placement_messages import STORAGE_SCHEME, BaseFile, BaseModelRef
from contract.task_spec import Precision
from service.fleet.base_models.model_catalog import files_of, is_stored
from service.fleet.models import BaseModel


def base_ref(session: Session, base: BaseModel, revision: str, precision: Precision) -> BaseModelRef:
    """Raises ValueError where the files of one that nodes fetch are gone, since the base was removed."""
    files = [BaseFile(path=f.path, sha256=f.sha256, bytes=f.bytes) for f in files_of(session, base.name)]
    return BaseModelRef(
        name=base.name,
        source=base.source,
        revision=revision,
        commit=base.commit,
        files=tuple(files),
        precision=precision,
        stored=bool(files) and is_stored(session, base.name),
    )


def fetch_capabilities(base: BaseModel) -> frozenset[str]:
    """What a worker must understand to bring the base to its node. One of the hub is also read by workers that know no storage:
    they ask the hub."""
    if base.source.startswith(STORAGE_SCHEME):
        return frozenset({STORED_BASES})
    return frozenset({HUB_BASES}) if base.commit is not None else frozenset()
