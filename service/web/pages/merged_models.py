"""Merged models: asked for beside an adapter, listed with their states, downloaded file by file, deleted."""

from fastapi import Request, Response
from fastapi.responses import RedirectResponse
from sqlalchemy import func, select

from service.authentication import Db, Writer
from service.merges import merge_requests
from service.merges import routes as merge_routes
from service.merges.merge_requests import NewMergedModel
from service.web.page_route import pages
from service.web.rendering import render
from service.web.session.viewer import Looking

router = pages()

_PAGE = 50
_LIST = "/adapters/merged"


@router.get(_LIST)
def list_merged_models(viewer: Looking, db: Db, request: Request, cursor: str | None = None) -> Response:
    reader = viewer.principal
    shown = merge_routes.list_merged_models(reader, db, cursor, _PAGE)
    with db.begin() as session:
        total = session.scalars(select(func.count()).select_from(merge_requests.merged_models(reader).subquery())).one()
    return render(request, "merged_models.html", rows=shown.data, total=total, next_cursor=shown.next_cursor)


@router.post("/adapters/{adapter_id}/merge")
def merge_adapter(adapter_id: str, writer: Writer, db: Db) -> Response:
    with db.begin() as session:
        merge_requests.begin(session, writer, NewMergedModel(adapter_id=adapter_id))
    return RedirectResponse(_LIST, 303)


@router.post("/adapters/merged/{merged_id}/delete")
def delete_merged_model(merged_id: str, writer: Writer, db: Db) -> Response:
    merge_routes.delete_merged_model(merged_id, writer, db)
    return RedirectResponse(_LIST, 303)
