"""Merged models as tenants ask for them: begun, found, deleted. Knows no HTTP and no nodes."""

from typing import Annotated

from pydantic import Field
from sqlalchemy import Select, func, select
from sqlalchemy.orm import Session

from contract.strict import STORABLE, Strict
from service.adapters.actions import find_adapter
from service.database.checked_json import required
from service.database.engine import clock, new_id
from service.fleet.models import BaseModel
from service.http.problems import Conflict, NotFound
from service.merges.models import OPEN, MergedModel
from service.tenants.api_keys import Principal
from service.tenants.tenant_scope import find, scoped
from service.usage.quotas import QuotaExceeded, admit_bytes, lock_tenant_quota

MOST_OPEN = 4  # of a tenant
_GIB = 2**30
_BF16_BYTES = 2


class BaseChanged(Conflict):
    """The adapter belongs to weights that the service no longer has under the base's name."""

    code, title = "base_changed", "The adapter's base is not there"


class NewMergedModel(Strict):
    adapter_id: Annotated[str, Field(max_length=128), STORABLE] = Field(
        description="The adapter that is added to its base; a task names that of its winner in `winner.adapter_id`"
    )
    max_shard_bytes: int = Field(
        default=5 * 10**9,
        ge=10**6,
        le=15 * _GIB,
        description="Most bytes of a safetensors file; a tensor that is larger has a file of its own",
    )


def begin(session: Session, principal: Principal, new: NewMergedModel) -> MergedModel:
    """Queue a merge. Raises NotFound, AdapterDeleted, BaseChanged, QuotaExceeded."""
    adapter = find_adapter(session, principal, new.adapter_id, kept=True)
    manifest, lineage = adapter.folder, adapter.folder.lineage
    base = session.get(BaseModel, lineage.base_model)
    if base is None or not base.enabled or base.revision != lineage.base_revision:
        there = "is not allowed here any more" if base is None or not base.enabled else "has other weights by now"
        raise BaseChanged(f"{lineage.base_model}, which the adapter was trained on, {there}; ask an admin to bring it back.")
    expected = base.parameters * _BF16_BYTES
    lock_tenant_quota(session, principal)  # admit_bytes takes it only where bytes are limited, and merges are counted, too
    admit_bytes(session, principal, expected)
    unended = session.scalar(select(func.count()).select_from(merged_models(principal).where(_OPEN).subquery())) or 0
    if unended >= MOST_OPEN:
        raise QuotaExceeded.of("merges_at_once", MOST_OPEN, unended, "wait until one has ended, or delete one")
    made = MergedModel(
        id=new_id("merged"),
        tenant_id=principal.tenant_id,
        adapter_id=adapter.id,
        adapter_files=manifest.files,
        lineage=lineage.model_dump(mode="json"),
        base_model=base.name,
        base_revision=base.revision,
        max_shard_bytes=new.max_shard_bytes,
        bytes=expected,
    )
    session.add(made)
    session.flush()
    session.refresh(made)
    return made


_OPEN = MergedModel.status.in_(OPEN)


def merged_models(principal: Principal) -> "Select[MergedModel]":
    """The caller's, without deleted ones."""
    return scoped(select(MergedModel).where(MergedModel.deleted_at.is_(None)), MergedModel, principal)


def find_merged(session: Session, principal: Principal, merged_id: str) -> MergedModel:
    """Raises NotFound."""
    return find(session, MergedModel, merged_id, principal, "merged model")


def file_of(merged: MergedModel, path: str) -> str:
    """The sha256 of a file. Raises NotFound, ResultUnreadable."""
    held = {file.path: file.sha256 for file in required(merged.files, f"{merged.id}: ")}
    if path not in held:
        which = f"it has {', '.join(sorted(held))}" if held else "none is stored yet"
        raise NotFound(f"The merged model has no file {path!r}; {which}.")
    return held[path]


def delete(session: Session, principal: Principal, merged_id: str) -> None:
    """Give up a merge that has not ended, remove a model that is there; garbage collection removes its bytes. Raises NotFound.

    A node that merges it is not told: its next heartbeat gets no lease."""
    found = find(session, MergedModel, merged_id, principal, "merged model", lock=True)
    found.deleted_at = clock(session)
