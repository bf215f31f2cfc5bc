"""The app of the transfer port: sends and takes what signed links name, in a process of its own, for storage in a folder.

It needs no database: whoever has a link may use it, as with the presigned URLs of a bucket.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, cast

from fastapi import APIRouter, Depends, FastAPI, Request, Response
from fastapi.responses import JSONResponse

from service.http import problem_handlers
from service.http.body_middleware import BodyLimit
from service.http.middleware import RequestLog, request_id
from service.http.problems import MEDIA_TYPE, NotFound, Problem
from service.metrics.api_metrics import ApiMetrics
from service.settings import Settings
from service.storage.connect import folder_of, transfer_links
from service.storage.downloads import digest, send_opened
from service.storage.granted_uploads import store_granted
from service.storage.local_storage import LocalStorage
from service.storage.object_store import ObjectMissing
from service.storage.transfer_links import PREFIX, TransferLinks
from service.storage.upload_grants import UploadGrants


class NothingLinked(NotFound):
    code, title = "object_gone", "What the link opened is gone"


@dataclass(frozen=True)
class Transfers:
    storage: LocalStorage
    links: TransferLinks
    grants: UploadGrants


async def _transfers(request: Request) -> Transfers:
    return cast(Transfers, request.app.state.transfers)


Used = Annotated[Transfers, Depends(_transfers)]
router = APIRouter()


@router.get("/livez")
@router.get(f"{PREFIX}/livez")  # as those reach it who come by a proxy
async def livez() -> dict[str, str]:
    return {"status": "ok"}


# a parameter of this name is kept out of the log: the link may still work
@router.api_route(f"{PREFIX}/objects/{{secret}}", methods=["GET", "HEAD"])
def get_object(secret: str, request: Request, transfers: Used) -> Response:
    linked = transfers.links.read(secret)
    try:
        if linked.kind == "derived":
            source, tag = transfers.storage.open_derived(linked.name), linked.name.partition("/")[0]
            return send_opened(request, source, f'"{tag}"', linked.filename, linked.media_type)
        source = transfers.storage.open(linked.name)
    except ObjectMissing:
        raise NothingLinked("It was removed since the link was made; ask the API for the file again.") from None
    return send_opened(request, source, f'"{linked.name}"', linked.filename, linked.media_type, digest(linked.name))


@router.put(f"{PREFIX}/uploads/{{secret}}", status_code=204)
async def put_object(secret: str, request: Request, transfers: Used) -> None:
    await store_granted(request, transfers.storage, transfers.grants.verify(secret))


def transfer_app(settings: Settings, metrics: ApiMetrics) -> FastAPI:
    """The app for settings with a transfer port. It opens nothing and starts no thread before it serves."""
    links = transfer_links(settings)
    assert links is not None, "there is a transfer port"
    grants = UploadGrants(settings.secret_key.get_secret_value())
    app = FastAPI(openapi_url=None, telemetry={"tracing": False, "metrics": False, "logs": False})
    app.state.transfers = Transfers(folder_of(settings), links, grants)
    app.add_middleware(BodyLimit)
    app.add_middleware(RequestLog, metrics=metrics)
    problem_handlers.install(app, {}, _for_browsers)
    app.router.routes.extend(router.routes)
    return app


def _for_browsers(request: Request, problem: Problem, headers: Mapping[str, str]) -> Response:
    return JSONResponse(problem.body(request_id(request.scope)), problem.status, dict(headers), media_type=MEDIA_TYPE)
