"""A tenant's own keys: made, shown once, listed, revoked."""

from datetime import UTC, datetime, timedelta

from fastapi import Request, Response

from service.app_state import Config, Service, state_of
from service.authentication import KeysDb, Reader
from service.idempotency.repeated_requests import AnswerBox, MemberClaimedKey
from service.members import member_routes, service_account_routes
from service.tenants import own_key_routes
from service.tenants.api_keys import Scope
from service.tenants.own_key_routes import MemberOrWriter, NewOwnKey
from service.tenants.routes import KeyResource
from service.web.forms import Form, read_as
from service.web.page_route import pages
from service.web.rendering import render
from service.web.session.viewer import Looking

router = pages()

_DAYS, _SHOWN = (7, 30, 90, 365), 100


@router.get("/keys")
def list_keys(viewer: Looking, reader: Reader, db: KeysDb, request: Request) -> Response:
    return _page(request, reader, db, None)


@router.post("/keys")
def create_key(
    viewer: Looking,
    maker: MemberOrWriter,
    db: KeysDb,
    config: Config,
    form: Form,
    request: Request,
    claim: MemberClaimedKey,
    answers: AnswerBox,
) -> Response:
    days = form.one("days")
    expires_at = datetime.now(UTC) + timedelta(days=int(days)) if days.isdecimal() and int(days) in _DAYS else None
    said = {"name": form.one("name") or "key", "scopes": form.all("scope"), "expires_at": expires_at}
    new = read_as(NewOwnKey, **said, **({"role": form.one("role")} if form.one("role") else {}))
    return _page(request, viewer.principal, db, own_key_routes.create_own_key(new, maker, db, config, claim, answers))


@router.post("/keys/{key_id}/revoke")
def revoke_key(
    key_id: str, viewer: Looking, maker: MemberOrWriter, reader: Reader, db: KeysDb, service: Service, request: Request
) -> Response:
    own_key_routes.revoke_own_key(key_id, maker, db, service)
    return _page(request, reader, db, None)


def _page(request: Request, reader: Reader, db: KeysDb, made: KeyResource | None) -> Response:
    keys = own_key_routes.list_own_keys(reader, db, None, _SHOWN).data
    members = member_routes.list_members(reader, db, None, _SHOWN).data
    accounts = service_account_routes.list_service_accounts(reader, db, None, _SHOWN).data
    answer = render(
        request,
        "keys.html",
        keys=keys,
        made=made,
        own=reader,
        scopes=list(Scope),
        days=_DAYS,
        now=datetime.now(UTC),
        whose={one.user_id: one.email or one.name or one.user_id for one in members},
        accounts={one.id: one.name for one in accounts},
        longest=state_of(request).settings.personal_key_days,
    )
    if made is not None:
        answer.headers["Cache-Control"] = "no-store"  # it holds a secret
    return answer
