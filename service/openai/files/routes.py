"""/openai/v1/files: training data sets, and jobs' result files."""

from datetime import timedelta
from functools import partial
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Request, Response
from sqlalchemy import false

from service.adapters.additional_files import additional_files
from service.adapters.routes import send_archive
from service.app_state import Store
from service.authentication import Db, Reader, Writer
from service.files import actions
from service.files.dataset_intake import Intake
from service.files.models import File
from service.files.multipart_upload import Upload, data_set, receiving
from service.http.openai_ids import OpenAiIds
from service.http.problems import invalid_field
from service.idempotency.repeated_requests import IdempotencyKey as IdempotencyKey
from service.idempotency.repeated_requests import claim_key_of_body
from service.openai.error_objects import PREFIX
from service.openai.files import result_files
from service.openai.files.file_objects import (
    LATEST_EXPIRY,
    SOONEST_EXPIRY,
    FileDeleted,
    FileObject,
    file_object,
    require_fine_tune,
)
from service.openai.id_translation import Ids, OwnIdsRoute
from service.openai.list_envelope import USUAL, After, ListOf, LongLimit, listed
from service.storage.downloads import attachment, send_object

router = APIRouter(prefix=f"{PREFIX}/files", include_in_schema=False, route_class=OwnIdsRoute)

_TEXTS = ("purpose", "expires_after[anchor]", "expires_after[seconds]")
Form = Annotated[Upload[Intake], Depends(receiving(data_set(*_TEXTS)))]

_MOST_DIGITS = len(str(LATEST_EXPIRY))
_MEDIA = {"metrics": "text/csv", "jobs": "application/jsonl"}


@router.post("")
def create_file(
    writer: Writer, upload: Form, db: Db, request: Request, ids: Ids, idempotency_key: IdempotencyKey = None
) -> FileObject:
    require_fine_tune(upload.texts.get("purpose", ""))
    lasts = _expires_after(upload)
    data = upload.intake.finish()
    said = (data.stored.sha256, upload.name, str(lasts))
    with claim_key_of_body(request, writer, idempotency_key, *said) as claim, db.begin() as session:
        made = file_object(actions.keep(session, writer, upload.name, data, lasts), ids)
        claim.store_answer(session, 200, made, {})
    return made


def _expires_after(upload: Form) -> timedelta | None:
    anchor, seconds = (upload.texts.get(f"expires_after[{part}]") for part in ("anchor", "seconds"))
    if anchor is None and seconds is None:
        return None
    if anchor != "created_at":
        raise invalid_field("expires_after[anchor]", "invalid_anchor", "must be 'created_at'")
    if (
        seconds is None
        or not (seconds.isascii() and seconds.isdigit() and len(seconds) <= _MOST_DIGITS)
        or not SOONEST_EXPIRY <= int(seconds) <= LATEST_EXPIRY
    ):
        message = f"must be a number from {SOONEST_EXPIRY} to {LATEST_EXPIRY}"
        raise invalid_field("expires_after[seconds]", "out_of_range", message)
    return timedelta(seconds=int(seconds))


@router.get("")
def list_files(
    reader: Reader,
    db: Db,
    ids: Ids,
    after: After = None,
    limit: LongLimit = USUAL,
    order: Literal["asc", "desc"] = "desc",
    purpose: str | None = None,
) -> ListOf[FileObject]:
    """Uploaded files. Result files are named by their jobs, and not listed."""
    with db.begin() as session:
        files = actions.files_of(reader)
        if purpose not in (None, "fine-tune"):
            files = files.where(false())
        return listed(
            session, reader, files, File, after, limit, lambda rows: [file_object(f, ids) for f in rows], order == "asc"
        )


@router.get("/{file_id}")
def get_file(file_id: str, reader: Reader, db: Db, ids: Ids) -> FileObject:
    with db.begin() as session:
        if result_files.is_result(file_id):
            return result_files.describe(session, reader, result_files.find_result(session, reader, file_id), ids)
        return file_object(actions.find_file(session, reader, file_id), ids)


@router.head("/{file_id}/content", include_in_schema=False)
@router.get("/{file_id}/content")
def get_file_content(file_id: str, reader: Reader, db: Db, storage: Store, request: Request, ids: Ids) -> Response:
    with db.begin() as session:
        if not result_files.is_result(file_id):
            file = actions.find_file(session, reader, file_id)
            answer = partial(send_object, request, storage, file.sha256, file.name, "application/jsonl")
        else:
            result = result_files.find_result(session, reader, file_id)
            if result.kind == "adapter":
                adapter = result_files.winners_adapter(session, reader, result.task)
                answer = partial(send_archive, request, storage, adapter, additional_files(session, reader, adapter))
            else:
                answer = partial(_as_text, result, ids, b"".join(result_files.text(session, reader, result)))
    return answer()  # after the transaction: storage may be slow


def _as_text(result: result_files.Result, ids: OpenAiIds, content: bytes) -> Response:
    return Response(content, 200, {"Content-Disposition": attachment(result.filename(ids))}, _MEDIA[result.kind])


@router.delete("/{file_id}")
def delete_file(file_id: str, writer: Writer, db: Db, ids: Ids) -> FileDeleted:
    with db.begin() as session:
        if result_files.is_result(file_id):
            result_files.find_result(session, writer, file_id)
            raise invalid_field(
                "file_id", "result_file", "is made from its job whenever it is asked for; there is nothing to delete"
            )
        actions.delete(session, writer, file_id)
    return FileDeleted(id=ids.of(file_id))
