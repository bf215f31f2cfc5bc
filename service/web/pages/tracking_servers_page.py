"""Tracking servers to which tasks are mirrored."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from fastapi import Request, Response
from fastapi.responses import RedirectResponse

from contract.integrations import TrackerType
from service.authentication import Db, Writer
from service.http.problems import BadRequest, Conflict, Invalid
from service.idempotency.repeated_requests import ClaimedKey
from service.mirrors import routes as mirrors
from service.mirrors.routes import Box, Out
from service.mirrors.tracking_servers import MOST, NewTrackingServer, TrackingServerChange
from service.web.forms import Form, read_as
from service.web.page_route import pages
from service.web.rendering import render
from service.web.session.viewer import Looking

router = pages()
TYPES: Mapping[TrackerType, str] = {"mlflow": "MLflow", "wandb": "Weights & Biases"}


@dataclass(frozen=True)
class ServerForm:
    """The form as it was sent; a refused one is shown again with what is wrong, without its secrets."""

    type: str = "mlflow"
    name: str = ""
    url: str = ""
    username: str = ""
    token: str = field(default="", repr=False)
    password: str = field(default="", repr=False)
    api_key: str = field(default="", repr=False)

    def read(self) -> NewTrackingServer:
        """Raises Invalid."""
        given = {name: getattr(self, name) for name in ("token", "username", "password", "api_key")}
        credentials = {name: value for name, value in given.items() if value} or None
        return read_as(NewTrackingServer, type=self.type, name=self.name, url=self.url or None, credentials=credentials)


@router.get("/tracking-servers")
def list_tracking_servers(viewer: Looking, db: Db, request: Request) -> Response:
    return _page(request, viewer, db)


@router.post("/tracking-servers")
def create_tracking_server(
    viewer: Looking, writer: Writer, db: Db, box: Box, out: Out, form: Form, request: Request, claim: ClaimedKey
) -> Response:
    said = {name: form.one(name).strip() for name in ("name", "url", "username", "token", "api_key")}
    draft = ServerForm(**said, type=form.one("type") or "mlflow", password=form.one("password"))
    try:
        mirrors.create_tracking_server(draft.read(), writer, db, box, out, claim)
    except (Invalid, Conflict) as problem:
        return _page(request, viewer, db, draft, problem)
    return RedirectResponse("/tracking-servers", 303)


@router.post("/tracking-servers/{server_id}/{act}")
def change_tracking_server(server_id: str, act: str, writer: Writer, db: Db, box: Box, out: Out) -> Response:
    match act:
        case "retry":
            mirrors.change_tracking_server(server_id, TrackingServerChange(), writer, db, box, out)
        case "delete":
            mirrors.delete_tracking_server(server_id, writer, db)
        case _:
            mirrors.get_tracking_server(server_id, writer, db)
            raise BadRequest("A tracking server can be tried again or deleted.")
    return RedirectResponse("/tracking-servers", 303)


def _page(
    request: Request,
    viewer: Looking,
    db: Db,
    draft: ServerForm | None = None,
    problem: Invalid | Conflict | None = None,
) -> Response:
    found = mirrors.list_tracking_servers(viewer.principal, db, None, MOST).data
    shown = {"servers": found, "draft": draft or ServerForm(), "problem": problem, "types": TYPES}
    return render(request, "tracking_servers.html", status=200 if problem is None else problem.status, **shown)
