"""/openai/v1/uploads: a file in parts of at most 64 MiB, for programs that send large files so."""

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Request
from pydantic import Field
from starlette.concurrency import run_in_threadpool

from contract.strict import STORABLE, Strict
from service.app_state import Config, Store
from service.authentication import Db, Writer
from service.database.engine import Database
from service.files.dataset_intake import IntakeLimits
from service.files.multipart_upload import Parts, boundary_of, receive_parts, sane_name
from service.files.uploads import actions
from service.files.uploads.assembly import assemble
from service.files.uploads.part_intake import PartIntake, PartTooLarge
from service.http.concurrency_limits import Assembling
from service.http.problems import invalid_field
from service.http.request_bodies import NO_BODY
from service.idempotency import idempotency_store
from service.idempotency.repeated_requests import ClaimedKey, claim_key_of_body
from service.idempotency.repeated_requests import IdempotencyKey as IdempotencyKey
from service.openai.error_objects import PREFIX
from service.openai.files.file_objects import LATEST_EXPIRY, SOONEST_EXPIRY, file_object, require_fine_tune
from service.openai.id_translation import Ids, OwnIdsRoute
from service.openai.uploads.upload_objects import UploadObject, UploadPartObject, part_object, upload_object
from service.tenants.api_keys import Principal

router = APIRouter(prefix=f"{PREFIX}/uploads", include_in_schema=False, route_class=OwnIdsRoute)

_Name = Annotated[str, Field(min_length=1, max_length=1024), STORABLE]
_MimeType = Annotated[str, Field(min_length=1, max_length=255), STORABLE]  # rows are checked, whatever it says
_PartId = Annotated[str, Field(min_length=1, max_length=64), STORABLE]


class ExpiresAfter(Strict):
    anchor: Literal["created_at"]
    seconds: Annotated[int, Field(ge=SOONEST_EXPIRY, le=LATEST_EXPIRY, strict=True)]


class UploadRequest(Strict):
    bytes: Annotated[int, Field(ge=1, strict=True)]
    filename: _Name
    mime_type: _MimeType
    purpose: str
    expires_after: ExpiresAfter | None = None


class CompletionOfUpload(Strict):
    part_ids: Annotated[list[_PartId], Field(min_length=1, max_length=actions.MOST_PARTS)]
    md5: Annotated[str, Field(pattern=r"^[0-9a-fA-F]{32}$")] | None = None


@router.post("")
def create_upload(wanted: UploadRequest, writer: Writer, db: Db, settings: Config, claim: ClaimedKey) -> UploadObject:
    require_fine_tune(wanted.purpose)
    if wanted.bytes > (most := IntakeLimits.of(settings).bytes):
        raise invalid_field("bytes", "too_large", f"is {wanted.bytes}; a file may have at most {most} bytes, split it")
    name, after = sane_name(wanted.filename, "filename"), wanted.expires_after
    lasts = timedelta(seconds=after.seconds) if after is not None else None
    with db.begin() as session:
        made = upload_object(actions.begin(session, writer, name, wanted.mime_type, wanted.bytes, lasts))
        claim.store_answer(session, 200, made, {})
    return made


async def _received_part(upload_id: str, request: Request, writer: Writer, storage: Store, db: Db) -> AsyncIterator[PartIntake]:
    """The received part. Removes it again unless the route finishes it. Reads nothing for an upload that takes no part, unless
    the part has an answer."""
    most = await run_in_threadpool(_room, db, writer, upload_id, request.headers.get("idempotency-key"))
    boundary = boundary_of(request, "a part called data")
    intake = PartIntake(await run_in_threadpool(storage.receive), most)
    parts = Parts(boundary, intake, file="data")
    try:
        await receive_parts(request, parts, most, PartTooLarge.beyond(most), "the bytes of this part of the upload")
        yield intake
    finally:
        await run_in_threadpool(intake.abandon)


def _room(db: Database, writer: Principal, upload_id: str, key: str | None) -> int:
    """The most bytes of the part. One sent again under its key is answered as it was, though the upload has ended by now."""
    if key is not None and idempotency_store.answered(db, writer, key):
        return actions.PART_BYTES
    with db.begin() as session:
        return actions.room_of_part(actions.find_open(session, writer, upload_id))


@router.post("/{upload_id}/parts")
def add_upload_part(
    upload_id: str,
    writer: Writer,
    intake: Annotated[PartIntake, Depends(_received_part)],
    db: Db,
    request: Request,
    idempotency_key: IdempotencyKey = None,
) -> UploadPartObject:
    stored = intake.finish()
    with claim_key_of_body(request, writer, idempotency_key, stored.sha256) as claim, db.begin() as session:
        made = part_object(actions.add_part(session, writer, upload_id, stored))
        claim.store_answer(session, 200, made, {})
    return made


@router.post("/{upload_id}/complete")
def complete_upload(
    upload_id: str,
    wanted: CompletionOfUpload,
    writer: Writer,
    db: Db,
    settings: Config,
    storage: Store,
    ids: Ids,
    limited: Assembling,
) -> UploadObject:
    """Sent again with the same parts, it is answered as it was."""
    with db.begin() as session:
        done = actions.completed(session, writer, upload_id, wanted.part_ids)
        if done is None:
            upload = actions.find_open(session, writer, upload_id)
            parts = actions.parts_in_order(session, writer, upload, wanted.part_ids)
    if done is None:
        data = assemble(storage, IntakeLimits.of(settings), parts, wanted.md5)  # outside of a transaction, since it takes long
        with db.begin() as session:
            done = actions.complete(session, writer, upload_id, wanted.part_ids, data)
    upload, file = done
    return upload_object(upload, file_object(file, ids))


@router.post("/{upload_id}/cancel", dependencies=[NO_BODY])
def cancel_upload(upload_id: str, writer: Writer, db: Db) -> UploadObject:
    with db.begin() as session:
        return upload_object(actions.cancel(session, writer, upload_id))
