"""What the tenant keeps: its files, uploaded here, and its adapters."""

from typing import BinaryIO

from fastapi import Request, Response
from fastapi.responses import RedirectResponse
from sqlalchemy import func, select
from starlette.datastructures import UploadFile

from service.adapters import routes as adapter_routes
from service.app_state import Config, Store
from service.authentication import Db, Writer
from service.database.engine import among_ids
from service.files import actions as files
from service.files import routes as file_routes
from service.files.dataset_intake import FileInvalid, Intake, IntakeLimits
from service.files.multipart_upload import sane_name
from service.http.problems import BadRequest
from service.storage.downloads import ObjectLost
from service.storage.object_store import ObjectMissing
from service.tasks.adapter_queries import adapters_of
from service.tasks.models import Task
from service.tenants.tenant_scope import scoped
from service.web.forms import Form
from service.web.page_route import pages
from service.web.rendering import render
from service.web.session.viewer import Looking
from service.web.views.job_rows import adapter_rows

router = pages()

_PAGE = 50
_BLOCK = 2**20
_ROWS, _LONGEST = 20, 4096  # rows of a file that are shown, and bytes of each


@router.get("/files")
def list_files(viewer: Looking, db: Db, request: Request, cursor: str | None = None) -> Response:
    reader = viewer.principal
    shown = file_routes.list_files(reader, db, cursor=cursor, limit=_PAGE)
    with db.begin() as session:
        total = session.scalars(select(func.count()).select_from(files.files_of(reader).subquery())).one()
    return render(request, "files.html", files=shown.data, total=total, next_cursor=shown.next_cursor)


@router.post("/files")
def upload_file(writer: Writer, db: Db, settings: Config, storage: Store, form: Form) -> Response:
    """For browsers without scripts: the file may have as many bytes as any other form. Scripts stream to /v1/files."""
    upload = form.data.get("file")
    if not isinstance(upload, UploadFile) or not upload.filename:
        raise BadRequest("No file was chosen.")
    name = sane_name(upload.filename)
    intake = Intake(storage.receive(), IntakeLimits.of(settings))
    try:
        while block := upload.file.read(_BLOCK):
            intake.feed(block)
        data = intake.finish()
    except FileInvalid as refused:
        raise FileInvalid(refused.errors, f"{name} was not uploaded: nothing was kept.", **refused.extra) from None
    finally:
        intake.abandon()
    with db.begin() as session:
        file = files.keep(session, writer, name, data)
    return RedirectResponse(f"/tasks/new?file={file.id}", 303)


@router.get("/files/{file_id}")
def show_file(file_id: str, viewer: Looking, db: Db, storage: Store, request: Request) -> Response:
    """The file's first rows, as they are stored."""
    with db.begin() as session:
        file = files.find_file(session, viewer.principal, file_id)
    try:
        with storage.open(file.sha256) as opened:
            lines = [_shown(opened) for _ in range(min(file.rows, _ROWS))]
    except ObjectMissing:
        raise ObjectLost("The file is missing from storage; upload it again.") from None
    return render(request, "file.html", file=file, lines=lines)


def _shown(opened: BinaryIO) -> str:
    """The next line, or its beginning; the rest of it is read past."""
    line = more = opened.readline(_LONGEST)
    while more and not more.endswith(b"\n"):
        more = opened.readline(_BLOCK)
    cut = not line.endswith(b"\n") and len(line) == _LONGEST
    return line.decode(errors="ignore").rstrip("\n") + ("…" if cut else "")


@router.post("/files/{file_id}/delete")
def delete_file(file_id: str, writer: Writer, db: Db) -> Response:
    file_routes.delete_file(file_id, writer, db)
    return RedirectResponse("/files", 303)


@router.get("/adapters")
def list_adapters(viewer: Looking, db: Db, request: Request, cursor: str | None = None) -> Response:
    reader = viewer.principal
    shown = adapter_routes.list_adapters(reader, db, None, "any", cursor, _PAGE)
    with db.begin() as session:
        total = session.scalars(select(func.count()).select_from(adapters_of(reader).subquery())).one()
        among = scoped(select(Task.id, Task.name, Task.winner_job_id).where(among_ids(Task.id)), Task, reader)
        ids = [one.task_id for one in shown.data if one.task_id is not None]
        tasks = {id: (name, won) for id, name, won in session.execute(among, {"ids": ids})}
    rows = adapter_rows(shown.data, tasks)
    return render(request, "adapters.html", rows=rows, total=total, next_cursor=shown.next_cursor)


@router.post("/adapters/{adapter_id}/delete")
def delete_adapter(adapter_id: str, writer: Writer, db: Db) -> Response:
    adapter_routes.delete_adapter(adapter_id, writer, db)
    return RedirectResponse("/adapters", 303)
