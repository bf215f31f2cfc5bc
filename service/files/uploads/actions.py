"""Upload actions: begin one, add a part, complete it, cancel it. Knows no HTTP.

Parts are objects of storage. The collector spares an object for a day after it was put, and an upload lasts an hour, so no part
is collected while its upload may need it; afterwards nothing refers to it.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from enum import StrEnum

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from service.database.engine import clock, new_id
from service.files import actions as files
from service.files.dataset_intake import CheckedDataSet
from service.files.models import ChunkedUpload, ChunkedUploadPart, File
from service.files.uploads.part_intake import PartTooLarge
from service.http.problems import Conflict, NotFound, invalid_field
from service.storage.object_store import Stored
from service.tenants.api_keys import Principal
from service.tenants.tenant_scope import find, scoped
from service.usage.quotas import admit_bytes

LASTS = timedelta(hours=1)
PART_BYTES = 64 * 2**20  # the most of one part
MOST_PARTS = 10_000


class UploadStatus(StrEnum):
    PENDING = "pending"
    COMPLETED = "completed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"  # never stored: a pending one whose time is over


class UploadEnded(Conflict):
    code, title = "upload_ended", "The upload has ended"


def begin(
    session: Session, principal: Principal, name: str, mime_type: str, bytes: int, file_lasts: timedelta | None
) -> ChunkedUpload:
    """Begin an upload of so many bytes, which count to the tenant's quota from now on. `file_lasts`: how long its file is kept,
    from the upload's completion. Raises QuotaExceeded."""
    admit_bytes(session, principal, bytes)
    now = clock(session)
    upload = ChunkedUpload(
        id=new_id("upload"),
        tenant_id=principal.tenant_id,
        name=name,
        mime_type=mime_type,
        bytes=bytes,
        status=UploadStatus.PENDING,
        file_lasts_seconds=int(file_lasts.total_seconds()) if file_lasts is not None else None,
        created_at=now,
        expires_at=now + LASTS,
    )
    session.add(upload)
    session.flush()
    session.refresh(upload)
    return upload


def status_of(upload: ChunkedUpload, now: datetime) -> UploadStatus:
    status = UploadStatus(upload.status)
    return UploadStatus.EXPIRED if status == UploadStatus.PENDING and upload.expires_at <= now else status


def find_open(session: Session, principal: Principal, upload_id: str, *, lock: bool = False) -> ChunkedUpload:
    """The caller's upload that may still take parts. Raises NotFound or UploadEnded."""
    upload = find(session, ChunkedUpload, upload_id, principal, "upload", lock=lock)
    status = status_of(upload, clock(session))
    if status != UploadStatus.PENDING:
        raise UploadEnded(f"The upload {upload_id!r} is {status}; begin another one.")
    return upload


def room_of_part(upload: ChunkedUpload) -> int:
    """The most bytes that the next part may have. Parts may have twice the upload's bytes together, since one whose answer was
    lost is sent again. Raises PartTooLarge or Invalid where there is room for none."""
    if upload.part_count >= MOST_PARTS:
        raise invalid_field("data", "too_many_parts", f"is one part too many: an upload has at most {MOST_PARTS}")
    left = 2 * upload.bytes - upload.received_bytes
    if left <= 0:
        raise PartTooLarge(
            f"The parts have {upload.received_bytes} bytes, twice those of the upload; complete it or begin another one.",
            limit=0,
        )
    return min(PART_BYTES, upload.bytes, left)


def add_part(session: Session, principal: Principal, upload_id: str, stored: Stored) -> ChunkedUploadPart:
    """Add a part that is in storage. Raises NotFound, UploadEnded, PartTooLarge, Invalid or QuotaExceeded."""
    upload = find_open(session, principal, upload_id, lock=True)
    if stored.bytes > (most := room_of_part(upload)):  # other parts came meanwhile
        raise PartTooLarge.beyond(most)
    counted = max(upload.bytes, upload.received_bytes)
    if (more := upload.received_bytes + stored.bytes - counted) > 0:
        admit_bytes(session, principal, more)
    upload.received_bytes += stored.bytes
    upload.part_count += 1
    part = ChunkedUploadPart(
        id=new_id("part"), upload_id=upload.id, tenant_id=principal.tenant_id, bytes=stored.bytes, sha256=stored.sha256
    )
    session.add(part)
    session.flush()
    session.refresh(part)
    return part


def parts_in_order(
    session: Session, principal: Principal, upload: ChunkedUpload, ids: Sequence[str]
) -> list[ChunkedUploadPart]:
    """These parts of the upload. Raises Invalid where one is no part of it, or they have not the upload's bytes together."""
    of_upload = select(ChunkedUploadPart).where(ChunkedUploadPart.upload_id == upload.id)
    known = {part.id: part for part in session.scalars(scoped(of_upload, ChunkedUploadPart, principal))}
    parts: dict[str, ChunkedUploadPart] = {}
    for place, id in enumerate(ids):
        if id not in known:
            raise invalid_field(f"part_ids[{place}]", "not_found", f"{id!r} is no part of this upload")
        if id in parts:
            raise invalid_field(f"part_ids[{place}]", "repeated", f"{id!r} is named twice")
        parts[id] = known[id]
    if (held := sum(part.bytes for part in parts.values())) != upload.bytes:
        message = f"have {held} bytes together; the upload was begun for {upload.bytes}"
        raise invalid_field("part_ids", "bytes_mismatch", message)
    return list(parts.values())


def complete(
    session: Session, principal: Principal, upload_id: str, part_ids: Sequence[str], data: CheckedDataSet
) -> tuple[ChunkedUpload, File]:
    """Keep the data set that was made of these parts as a file, and end the upload. Where another request has just done so, its
    file. Raises NotFound, UploadEnded or QuotaExceeded."""
    if (done := completed(session, principal, upload_id, part_ids)) is not None:
        return done
    upload = find_open(session, principal, upload_id)
    _end(session, upload, UploadStatus.COMPLETED)  # first, or its bytes would count beside the file's
    lasts = timedelta(seconds=upload.file_lasts_seconds) if upload.file_lasts_seconds is not None else None
    file = files.keep(session, principal, upload.name, data, lasts)
    upload.file_id, upload.completed_part_ids = file.id, list(part_ids)
    return upload, file


def completed(
    session: Session, principal: Principal, upload_id: str, part_ids: Sequence[str]
) -> tuple[ChunkedUpload, File] | None:
    """The upload and its file, where it was completed with these parts and the file is still there. Locks the upload, so that
    what else the transaction reads of it is of the same moment. Raises NotFound."""
    upload = find(session, ChunkedUpload, upload_id, principal, "upload", lock=True)
    if upload.file_id is None or upload.completed_part_ids != list(part_ids):
        return None
    try:
        return upload, files.find_file(session, principal, upload.file_id)
    except NotFound:
        return None


def cancel(session: Session, principal: Principal, upload_id: str) -> ChunkedUpload:
    """End the upload without a file; one that was cancelled stays so. Raises NotFound or UploadEnded."""
    upload = find(session, ChunkedUpload, upload_id, principal, "upload", lock=True)
    if upload.status != UploadStatus.CANCELLED:
        _end(session, find_open(session, principal, upload_id), UploadStatus.CANCELLED)
    return upload


def _end(session: Session, upload: ChunkedUpload, status: UploadStatus) -> None:
    upload.status = status
    session.execute(delete(ChunkedUploadPart).where(ChunkedUploadPart.upload_id == upload.id))
    session.flush()
