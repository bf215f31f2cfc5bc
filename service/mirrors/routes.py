"""Routes of tracking servers, and of what of a task they were sent."""

from typing import Annotated

from fastapi import APIRouter, Depends
from sqlalchemy import select

from service.app_state import Config
from service.authentication import Db, Reader, Writer
from service.http.outbound import Outbound
from service.http.pagination import Cursor, Limit, Page, page
from service.http.response_schemas import problems
from service.idempotency.repeated_requests import ClaimedKey
from service.mirrors import tracking_servers
from service.mirrors.models import TrackingServer
from service.mirrors.task_mirrors import TaskMirrorResource, mirrors_of
from service.mirrors.tracking_servers import NewTrackingServer, TrackingServerChange, TrackingServerResource
from service.secret_box import SecretBox
from service.tasks.models import Task
from service.tenants.tenant_scope import find, scoped

router = APIRouter(prefix="/v1", responses=problems(401, 403))


def _box(settings: Config) -> SecretBox:
    return tracking_servers.box_of(settings)


def _outbound(settings: Config) -> Outbound:
    return tracking_servers.outbound_of(settings)


Box = Annotated[SecretBox, Depends(_box)]
Out = Annotated[Outbound, Depends(_outbound)]


@router.post(
    "/tracking-servers",
    status_code=201,
    operation_id="create_tracking_server",
    summary="Add a tracking server: MLflow or Weights & Biases",
    description="Specs name it in `integrations`. Credentials are stored encrypted, sent to its URL alone, and never shown.",
    tags=["tracking servers"],
    responses=problems(400, 409, 422),
)
def create_tracking_server(
    new: NewTrackingServer, writer: Writer, db: Db, box: Box, outbound: Out, claim: ClaimedKey
) -> TrackingServerResource:
    url = tracking_servers.check_new(outbound, new)
    with db.begin() as session:
        made = TrackingServerResource.of(tracking_servers.create(session, box, writer, new, url))
        claim.store_answer(session, 201, made, {})
    return made


@router.get(
    "/tracking-servers",
    operation_id="list_tracking_servers",
    summary="List tracking servers, the newest first",
    tags=["tracking servers"],
    responses=problems(422),
)
def list_tracking_servers(reader: Reader, db: Db, cursor: Cursor = None, limit: Limit = 20) -> Page[TrackingServerResource]:
    with db.begin() as session:
        own = scoped(select(TrackingServer), TrackingServer, reader)
        return page(session, own, TrackingServer, cursor, limit, lambda rows: [TrackingServerResource.of(row) for row in rows])


@router.get(
    "/tracking-servers/{server_id}",
    operation_id="get_tracking_server",
    summary="Get a tracking server",
    tags=["tracking servers"],
    responses=problems(404),
)
def get_tracking_server(server_id: str, reader: Reader, db: Db) -> TrackingServerResource:
    with db.begin() as session:
        return TrackingServerResource.of(tracking_servers.find_server(session, reader, server_id))


@router.patch(
    "/tracking-servers/{server_id}",
    operation_id="change_tracking_server",
    summary="Change a tracking server",
    description="Its mirrors go on at once, those that were given up, too: an empty object is how to try them again.",
    tags=["tracking servers"],
    responses=problems(400, 404, 422),
)
def change_tracking_server(
    server_id: str, change: TrackingServerChange, writer: Writer, db: Db, box: Box, outbound: Out
) -> TrackingServerResource:
    with db.begin() as session:
        server = tracking_servers.find_server(session, writer, server_id)
    tracking_servers.check_change(outbound, server, change)
    with db.begin() as session:
        server = tracking_servers.find_server(session, writer, server_id, lock=True)
        tracking_servers.change(session, box, server, change)
        return TrackingServerResource.of(server)


@router.delete(
    "/tracking-servers/{server_id}",
    status_code=204,
    operation_id="delete_tracking_server",
    summary="Delete a tracking server",
    description="Tasks that name it train on and are mirrored no further. What is on the server stays there.",
    tags=["tracking servers"],
    responses=problems(404),
)
def delete_tracking_server(server_id: str, writer: Writer, db: Db) -> None:
    with db.begin() as session:
        tracking_servers.delete(session, tracking_servers.find_server(session, writer, server_id, lock=True))


@router.get(
    "/tasks/{task_id}/mirrors",
    operation_id="list_task_mirrors",
    summary="List what of a task its tracking servers were sent, all on one page",
    description="In the order of the spec's `integrations`; empty without any.",
    tags=["tasks"],
    responses=problems(404),
)
def list_task_mirrors(task_id: str, reader: Reader, db: Db) -> Page[TaskMirrorResource]:
    with db.begin() as session:
        find(session, Task, task_id, reader, "task")
        return Page(data=mirrors_of(session, reader, task_id), next_cursor=None)
