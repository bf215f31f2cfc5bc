"""Tracking servers of tenants: made, changed, deleted. Credentials are stored encrypted. Knows no HTTP but the URL check."""

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Literal, Self, cast

from pydantic import BaseModel, Field, ValidationInfo, field_validator, model_validator
from sqlalchemy import func, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from contract.evaluation.endpoint_fields import HeaderValue
from contract.integrations import ServerName, TrackerType
from contract.strict import STORABLE, LeftOut, Strict
from service.database.engine import new_id
from service.http.outbound import MAX_URL, NotPublic, Outbound, Refused, parse_url
from service.http.problems import Conflict, FieldError, Invalid, form_error
from service.mirrors.models import TaskMirror, TrackingServer
from service.secret_box import SecretBox
from service.settings import Settings
from service.tenants.api_keys import Principal
from service.tenants.tenant_scope import find, scoped

MOST = 20  # tracking servers per tenant
PURPOSE = "tracking server's credentials"
_CALL_SECONDS = 15.0  # until a server has answered

_PATH = 64  # characters, room for that of a call
Url = Annotated[str, Field(min_length=1, max_length=MAX_URL - _PATH), STORABLE]
_Login = Annotated[str, Field(min_length=1, max_length=1024), STORABLE]
WANDB_URL = "https://api.wandb.ai"
_WRONG_CREDENTIALS = "credentials_wrong"
_MLFLOW_WAYS = "give 'token', or 'username' with 'password'; leave 'credentials' out where the server asks none"


class TooManyServers(Invalid):
    code, title = "too_many_tracking_servers", "The tenant has as many tracking servers as it may"


class ServerNameTaken(Conflict):
    code, title = "tracking_server_exists", "The tenant has a tracking server of this name"


class Credentials(Strict):
    """Of MLflow a bearer token, or a user's name and password (basic authentication); of W&B an API key."""

    token: HeaderValue | None = None
    username: Annotated[str, Field(min_length=1, max_length=1024, pattern=r"^[^:]*$"), STORABLE] | None = None
    password: _Login | None = None
    api_key: Annotated[str, Field(min_length=1, max_length=1024, pattern="^[!-~]*$")] | None = None

    @model_validator(mode="after")
    def _of_one_kind(self) -> Self:
        ways = sum(one is not None for one in (self.token, self.username, self.api_key))
        if ways != 1 or (self.username is None) != (self.password is None):
            raise ValueError(f"{_MLFLOW_WAYS}; or, for a server of type wandb, 'api_key'")
        return self


class NewTrackingServer(Strict):
    type: TrackerType = "mlflow"
    name: ServerName = Field(description="By which specs name it")
    url: Url | None = Field(
        default=None,
        validate_default=True,
        description="Of an MLflow tracking server, without /api/2.0, or of a W&B server of your own (left out, "
        f"{WANDB_URL}): https, and a host whose every address is public",
    )
    credentials: Credentials | None = Field(default=None, validate_default=True)

    @field_validator("url")
    @classmethod
    def _of_its_type(cls, url: str | None, seen: ValidationInfo) -> str | None:
        if url is None and seen.data.get("type") == "mlflow":
            raise form_error("missing", "says where the MLflow server is; only type wandb has one of its own")
        return _formed(url)

    @field_validator("credentials")
    @classmethod
    def _asked_by_its_type(cls, credentials: Credentials | None, seen: ValidationInfo) -> Credentials | None:
        wrong = _credential_mistake(seen.data["type"], credentials) if "type" in seen.data else None
        if wrong is not None:
            raise form_error(_WRONG_CREDENTIALS, wrong, "api_key")
        return credentials


class TrackingServerChange(Strict):
    """What is left out stays as it is, but for a new `url`, which needs credentials of its own where there were some;
    `credentials` null removes them. Mirrors that were given up begin anew."""

    url: LeftOut[Url] = None
    credentials: Credentials | None = None

    @field_validator("url")
    @classmethod
    def _of_some_type(cls, url: str) -> str | None:
        return _formed(url)


class TrackingServerResource(BaseModel):
    object: Literal["tracking_server"] = "tracking_server"
    id: str
    type: TrackerType
    name: str
    url: str
    has_credentials: bool = Field(description="They are never shown")
    created_at: datetime

    @classmethod
    def of(cls, server: TrackingServer) -> Self:
        return cls(
            id=server.id,
            type=cast(TrackerType, server.type),
            name=server.name,
            url=server.url,
            has_credentials=server.credentials is not None,
            created_at=server.created_at,
        )


def box_of(settings: Settings) -> SecretBox:
    """The SecretBox for credentials."""
    return SecretBox.of(settings, PURPOSE)


def outbound_of(settings: Settings) -> Outbound:
    return Outbound(settings.tracking_networks, _CALL_SECONDS)


def check_new(outbound: Outbound, new: NewTrackingServer) -> str:
    """The new server's URL. Raises Invalid where the SSRF guard refuses it. Resolves the name, so call it outside a
    transaction."""
    url = new.url or WANDB_URL
    if found := _url_mistakes(outbound, url):
        raise Invalid(found)
    return url


def check_change(outbound: Outbound, server: TrackingServer, wanted: TrackingServerChange) -> None:
    """As `check_new`, and Invalid also for credentials that are not of the server's type, or that nobody is shown and that
    would be sent to another URL."""
    found = _url_mistakes(outbound, wanted.url) if wanted.url is not None else []
    if found := found + _change_mistakes(server, wanted):
        raise Invalid(found)


def _change_mistakes(server: TrackingServer, wanted: TrackingServerChange) -> list[FieldError]:
    if "credentials" in wanted.model_fields_set:
        wrong = _credential_mistake(server.type, wanted.credentials)
        return [FieldError(field="credentials.api_key", code=_WRONG_CREDENTIALS, message=wrong)] if wrong is not None else []
    if wanted.url in (None, server.url) or server.credentials is None:
        return []
    why = "belong to the present URL and go to no other; give those of the new URL, or null where it asks for none"
    return [FieldError(field="credentials", code="credentials_needed", message=why)]


def _credential_mistake(type: str, credentials: Credentials | None) -> str | None:
    if type == "wandb" and (credentials is None or credentials.api_key is None):
        return "is what a server of type wandb asks for"
    if type == "mlflow" and credentials is not None and credentials.api_key is not None:
        return f"is of type wandb; for MLflow {_MLFLOW_WAYS}"
    return None


def _formed(url: str | None) -> str | None:
    """The URL, if it is of a form that may be called, whatever an operator allows."""
    if url is not None and "?" in url:
        raise form_error("url_refused", "may not have a query: the paths of the server's API are appended to it")
    try:
        parse_url(url or WANDB_URL)
    except Refused as refused:
        raise form_error("url_refused", str(refused)) from None
    return url


def _url_mistakes(outbound: Outbound, url: str) -> list[FieldError]:
    try:
        outbound.check(url)
    except Refused as refused:
        way = "; an operator allows a private network in MOTET_TRACKING_NETWORKS" if isinstance(refused, NotPublic) else ""
        return [FieldError(field="url", code="url_refused", message=f"{refused}{way}")]
    return []


def create(session: Session, box: SecretBox, principal: Principal, new: NewTrackingServer, url: str) -> TrackingServer:
    """url: as `check_new` returned it. Raises TooManyServers, ServerNameTaken."""
    count = session.scalar(scoped(select(func.count(TrackingServer.id)), TrackingServer, principal)) or 0
    if count >= MOST:
        raise TooManyServers([], f"There are {count} tracking servers, the limit is {MOST}; delete one.")
    server = TrackingServer(
        id=new_id("tracker"),
        tenant_id=principal.tenant_id,
        type=new.type,
        name=new.name,
        url=url,
        credentials=_sealed(box, new.credentials),
    )
    try:
        with session.begin_nested():
            session.add(server)
    except IntegrityError:
        raise ServerNameTaken(f"There is a tracking server {new.name!r} already; change it, or take another name.") from None
    session.refresh(server)
    return server


def find_server(session: Session, principal: Principal, id: str, *, lock: bool = False) -> TrackingServer:
    return find(session, TrackingServer, id, principal, "tracking server", lock=lock)


def change(session: Session, box: SecretBox, server: TrackingServer, wanted: TrackingServerChange) -> None:
    """Change a locked server by what `check_change` passed. Its mirrors are visited at once, given up ones too. Raises Invalid
    where another change since then gave it credentials that nobody is shown and that would be sent to another URL."""
    if found := _change_mistakes(server, wanted):
        raise Invalid(found)
    server.url = wanted.url or server.url
    if "credentials" in wanted.model_fields_set:
        server.credentials = _sealed(box, wanted.credentials)
    again = update(TaskMirror).where(TaskMirror.server_id == server.id, TaskMirror.state.in_(("active", "failed")))
    anew = {"state": "active", "attempts": 1, "failing_since": None, "next_at": func.clock_timestamp(), "held_until": None}
    session.execute(again.values(**anew, unrecorded=0, claim=TaskMirror.claim + 1))


def delete(session: Session, server: TrackingServer) -> None:
    """Delete a locked server. Its mirrors stop where they are; the runs there stay."""
    stopped = update(TaskMirror).where(TaskMirror.server_id == server.id, TaskMirror.state.in_(("active", "failed")))
    why = "the tracking server was deleted"
    session.execute(stopped.values(state="stopped", error=why, held_until=None, claim=TaskMirror.claim + 1))
    session.delete(server)


def opened(box: SecretBox, sealed: bytes | None) -> Mapping[str, str]:
    """A server's credentials. Raises Unsealable."""
    found: dict[str, str] = json.loads(box.open(sealed)) if sealed is not None else {}
    return found


def _sealed(box: SecretBox, credentials: Credentials | None) -> bytes | None:
    return None if credentials is None else box.seal(credentials.model_dump_json(exclude_none=True))
