"""The adapters table: a job's best checkpoint or a tenant's upload, immutable until its tenant deletes it."""

from typing import Annotated, Any, cast

from pydantic import BeforeValidator, TypeAdapter
from sqlalchemy import BigInteger, ColumnElement, Double, ForeignKey, Index, String, text, type_coerce
from sqlalchemy.orm import Mapped, mapped_column

from contract.messages.adapter_manifest import AdapterManifest, UploadedManifest
from contract.messages.peft_settings import PeftSettings
from contract.row_scores import RowScores
from service.database.checked_json import CheckedJson, ParsedJson, ResultUnreadable, UnreadList, UnreadValue, required
from service.database.engine import At, Base, Id, Now

_STEPS = CheckedJson(TypeAdapter(list[int]), UnreadList, none_as_null=True)
# as they are stored, read by whatever reads rows
StoredSteps = Annotated[list[int], BeforeValidator(lambda said: _STEPS.read(said) or [])]
Manifest = AdapterManifest | UploadedManifest
_TRAINED, _UPLOADED = TypeAdapter(AdapterManifest), TypeAdapter(UploadedManifest)
_ROW_SCORES = TypeAdapter(RowScores)


def _stored(manifest: Manifest) -> dict[str, Any]:
    return manifest.stored() if isinstance(manifest, UploadedManifest) else manifest.model_dump(mode="json")


class _ManifestJson(ParsedJson):
    """A union with tags would name them in the words for an owner."""

    cache_ok = True

    def of_value(self, value: Any) -> TypeAdapter[Any]:
        return _UPLOADED if isinstance(value, dict) and "settings" in value else _TRAINED


class Adapter(Base):
    __tablename__ = "adapters"

    id: Mapped[Id]
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id"))
    task_id: Mapped[str | None] = mapped_column(ForeignKey("tasks.id"), index=True)  # this and the next three: null if uploaded
    job_id: Mapped[str | None] = mapped_column(ForeignKey("jobs.id"), unique=True)
    step: Mapped[int | None]
    val_loss: Mapped[float | None] = mapped_column(Double)
    name: Mapped[str | None] = mapped_column(String(128))  # as its uploader calls it
    manifest: Mapped[Manifest | UnreadValue] = mapped_column(
        _ManifestJson(_TRAINED, "files of the adapter (adapters.manifest)", dump=_stored)
    )
    scores: Mapped[RowScores | UnreadValue | None] = mapped_column(
        ParsedJson(_ROW_SCORES, "scores of an adapter (adapters.scores)", none_as_null=True), deferred=True
    )
    bytes: Mapped[int] = mapped_column(BigInteger)  # of its files; counts towards the stored-bytes quota
    created_at: Mapped[Now]
    deleted_at: Mapped[At | None]  # afterwards it uses no quota, and garbage collection deletes its objects

    @property
    def folder(self) -> Manifest:
        """The manifest. Raises ResultUnreadable."""
        return cast(Manifest, required(self.manifest, f"{self.id}: "))

    @property
    def settings(self) -> PeftSettings:
        """Those of its folder. Raises ResultUnreadable."""
        folder = self.folder
        try:
            return folder.settings
        except ValueError as error:
            raise ResultUnreadable(f"{self.id}: the stored adapters.manifest is damaged: {error}") from None

    @property
    def trained(self) -> AdapterManifest:
        """The manifest of one that a job trained. Raises ResultUnreadable."""
        if isinstance(found := self.folder, UploadedManifest):
            raise ResultUnreadable(f"{self.id}: the stored adapters.manifest is of an adapter that was uploaded, not trained")
        return found

    __table_args__ = (
        Index("ix_adapters_tenant_id_created", "tenant_id", text("created_at DESC"), text("id DESC")),
        Index("ix_adapters_uploaded", "deleted_at", postgresql_where=text("task_id IS NULL")),
        Index("ix_adapters_bytes", "tenant_id", postgresql_include=["bytes"], postgresql_where=text("deleted_at IS NULL")),
    )


# those of a manifest, without reading the rest of it; null: an earlier version stored none
AVERAGED_STEPS: ColumnElement[list[int] | None] = type_coerce(Adapter.manifest["averaged_steps"], _STEPS)
