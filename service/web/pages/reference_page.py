"""The API reference, made from the same document as openapi.yaml."""

from functools import lru_cache

from fastapi import FastAPI, Request, Response

from service.web.page_route import pages
from service.web.rendering import render
from service.web.session.viewer import Looking
from service.web.views.api_reference import Operation, operations

router = pages()


@router.get("/docs")
def show_reference(viewer: Looking, request: Request) -> Response:
    return render(request, "docs.html", operations=_operations(request.app, str(request.base_url).rstrip("/")))


@lru_cache(maxsize=8)
def _operations(app: FastAPI, api_url: str) -> dict[str, list[Operation]]:
    return operations(app.openapi(), api_url)
