"""A base as a node is told of it: its name, where its files are, which revision."""

from sqlalchemy.orm import Session

from contract.messages.placement_messages import BaseFile, BaseModelRef
from contract.task_spec import Precision
from service.fleet.base_models.model_catalog import files_of
from service.fleet.models import BaseModel


def base_ref(session: Session, base: BaseModel, revision: str, precision: Precision) -> BaseModelRef:
    files = [BaseFile(path=f.path, sha256=f.sha256, bytes=f.bytes) for f in files_of(session, base.name)] if base.commit else []
    return BaseModelRef(
        name=base.name, source=base.source, revision=revision, commit=base.commit, files=tuple(files), precision=precision
    )
