"""A tenant's own keys: made, shown once, listed, revoked."""

from datetime import UTC, datetime, timedelta

from fastapi import Request, Response
from pydantic import ValidationError

from service.app_state import Service
from service.authentication import Reader, Writer
from service.http.problem_handlers import field_error
from service.http.problems import Invalid
from service.idempotency.repeated_requests import AnswerBox, ClaimedKey
from service.tenants import own_key_routes
from service.tenants.api_keys import Scope
from service.tenants.own_key_routes import KeysDb
from service.tenants.routes import KeyResource, NewKey
from service.web.forms import Form
from service.web.page_route import pages
from service.web.rendering import render
from service.web.session.viewer import Looking

router = pages()

_DAYS = (7, 30, 90, 365)


@router.get("/keys")
def list_keys(viewer: Looking, reader: Reader, db: KeysDb, request: Request) -> Response:
    return _page(request, reader, db, None)


@router.post("/keys")
def create_key(
    viewer: Looking, writer: Writer, db: KeysDb, form: Form, request: Request, claim: ClaimedKey, answers: AnswerBox
) -> Response:
    days = form.one("days")
    expires_at = datetime.now(UTC) + timedelta(days=int(days)) if days.isdecimal() and int(days) in _DAYS else None
    try:
        new = NewKey.model_validate({"name": form.one("name") or "key", "scopes": form.all("scope"), "expires_at": expires_at})
    except ValidationError as error:
        errors = [field_error({**one, "loc": ("body", *one["loc"])}, [NewKey]) for one in error.errors()]
        raise Invalid(errors) from None
    return _page(request, viewer.principal, db, own_key_routes.create_own_key(new, writer, db, claim, answers))


@router.post("/keys/{key_id}/revoke")
def revoke_key(
    key_id: str, viewer: Looking, writer: Writer, reader: Reader, db: KeysDb, service: Service, request: Request
) -> Response:
    own_key_routes.revoke_own_key(key_id, writer, db, service)
    return _page(request, reader, db, None)


def _page(request: Request, reader: Reader, db: KeysDb, made: KeyResource | None) -> Response:
    keys = own_key_routes.list_own_keys(reader, db, None, 100).data
    now = datetime.now(UTC)
    answer = render(request, "keys.html", keys=keys, made=made, own=reader, scopes=list(Scope), days=_DAYS, now=now)
    if made is not None:
        answer.headers["Cache-Control"] = "no-store"  # it holds a secret
    return answer
