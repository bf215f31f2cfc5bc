"""Import actions: begin one, find it, list those that are not files yet, give one up. Knows no HTTP and downloads nothing."""

import json
from dataclasses import asdict

from sqlalchemy import Select, select
from sqlalchemy.orm import Session

from service.database.engine import new_id
from service.files.imports.sources import Found
from service.files.models import FileImport
from service.secret_box import SecretBox
from service.settings import Settings
from service.tenants.api_keys import Principal
from service.tenants.tenant_scope import scoped
from service.usage.quotas import admit_bytes

IMPORTING, READY, FAILED = "importing", "ready", "failed"
_PURPOSE = "import's source"
_SIGNED_SECONDS = 3600.0


def box_of(settings: Settings) -> SecretBox:
    """Encrypts URLs, which may be presigned, and tokens, until their import has ended."""
    return SecretBox.of(settings, _PURPOSE)


def begin(session: Session, principal: Principal, name: str, found: Found, box: SecretBox) -> FileImport:
    """Add an import to the caller's tenant, and reserve the bytes that its source tells. Raises QuotaExceeded."""
    admit_bytes(session, principal, found.bytes or 1)
    row = FileImport(
        id=new_id("file"),
        tenant_id=principal.tenant_id,
        name=name,
        status=IMPORTING,
        source=found.shown,
        path=found.path,
        revision=found.revision,
        commit=found.commit,
        license=found.license,
        gated=found.gated,
        pins=asdict(found.pins),
        sealed=box.seal(json.dumps(_secrets(found))),
        total_bytes=found.bytes,
        reserved_bytes=found.bytes or 0,
    )
    session.add(row)
    session.flush()
    session.refresh(row)
    return row


def _secrets(found: Found) -> dict[str, object]:
    said: dict[str, object] = {"url": found.url, "token": found.token, "trusted": found.trusted}
    if found.bucket is None:
        return said
    # the URL is for a process of the version before, which signs none
    return said | {"url": found.bucket.url(_SIGNED_SECONDS), "bucket": asdict(found.bucket)}


def imports_of(principal: Principal, status: str) -> Select[FileImport]:
    """The caller's imports of this status."""
    return scoped(select(FileImport).where(FileImport.status == status), FileImport, principal)


def find_import(session: Session, principal: Principal, file_id: str) -> FileImport | None:
    """The caller's import of this id; None for a file that was uploaded, and for another tenant's."""
    return session.scalar(scoped(select(FileImport).where(FileImport.id == file_id), FileImport, principal))


def give_up(session: Session, principal: Principal, file_id: str) -> bool:
    """Delete an import that is not a file yet; its download ends by itself. False where there is none."""
    row = session.scalar(
        scoped(
            select(FileImport).where(FileImport.id == file_id, FileImport.status != READY), FileImport, principal
        ).with_for_update()
    )
    if row is None:
        return False
    session.delete(row)
    return True
