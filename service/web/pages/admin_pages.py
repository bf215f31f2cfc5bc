"""For admins: tenants with quotas and keys, prices, base models, join tokens, the audit log. Nodes are on the page Cluster."""

from datetime import UTC, date, datetime, timedelta
from typing import Annotated, Any

from fastapi import Request, Response
from fastapi.responses import RedirectResponse
from pydantic import Field
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from contract.gpu_counts import device_word
from contract.strict import Strict
from contract.wording.quota_words import quota_words
from service.app_state import Config, QueueDep, Service
from service.audit import routes as audit
from service.authentication import AdminDb
from service.fleet import join_token_routes
from service.fleet.base_models import routes as base_model_routes
from service.fleet.models import BaseCopy, Node
from service.fleet.models import BaseModel as Base
from service.http.pagination import Cursor
from service.idempotency.repeated_requests import AdminClaimedKey, AnswerBox
from service.tenants import routes as tenants
from service.tenants.models import Tenant
from service.usage import price_routes
from service.usage.usage_queries import device_types_of
from service.web.forms import Form, read_as
from service.web.page_route import pages
from service.web.rendering import render
from service.web.session.viewer import Looking, Viewer

router = pages()

_SHOWN = 100
_MOST_DAYS = 36_500  # of a key


@router.get("/admin")
def show_admin(
    viewer: Looking, db: AdminDb, settings: Config, request: Request, cursor: Cursor = None, audit_cursor: Cursor = None
) -> Response:
    return _page(request, viewer, db, settings, cursor, audit_cursor)


def _page(
    request: Request,
    viewer: Viewer,
    db: AdminDb,
    settings: Config,
    cursor: str | None = None,
    audit_cursor: str | None = None,
    **made: Any,
) -> Response:
    with db.begin() as session:
        models = list(session.scalars(select(Base).where(Base.enabled).order_by(Base.name)))
        copies = {copy.base_model: copy.status for copy in session.scalars(select(BaseCopy))}
        number = session.scalar(select(func.count()).select_from(Tenant))
        quotas = _quota_words(session)
        device_types = sorted(device_types_of(session))
    answer = render(
        request,
        "admin.html",
        tenants=tenants.list_tenants(db, cursor, _SHOWN),
        number=number,
        models=models,
        copies=copies,
        prices=price_routes.list_prices(viewer.principal, db, settings),
        device_types=device_types,
        tokens=join_token_routes.list_join_tokens(db, None, 20).data,
        audit=audit.list_all_audit(db, None, None, audit_cursor, 50),
        quotas=quotas,
        now=datetime.now(UTC),
        **({"secret": None, "what": None} | made),
    )
    if made:
        answer.headers["Cache-Control"] = "no-store"  # it holds a secret
    return answer


@router.post("/admin/tenants")
def create_tenant(db: AdminDb, form: Form, claim: AdminClaimedKey) -> Response:
    new = read_as(tenants.NewTenant, name=form.one("name"), weight=_number(form.one("weight")) or 1.0)
    tenants.create_tenant(new, db, claim)
    return _back()


@router.get("/admin/tenants/{tenant_id}")
def show_tenant(tenant_id: str, viewer: Looking, db: AdminDb, request: Request) -> Response:
    return _tenant_page(request, db, tenant_id)


def _tenant_page(request: Request, db: AdminDb, tenant_id: str, secret: str | None = None) -> Response:
    with db.begin() as session:
        tenant = tenants.TenantResource.of(tenants.tenant_row(session, tenant_id))
        quotas = _quota_words(session)
    keys = tenants.list_keys(tenant_id, db, None, _SHOWN).data
    log = audit.list_all_audit(db, tenant_id, None, None, 50).data
    answer = render(request, "admin_tenant.html", tenant=tenant, keys=keys, quotas=quotas, secret=secret, audit=log)
    if secret is not None:
        answer.headers["Cache-Control"] = "no-store"
    return answer


@router.post("/admin/tenants/{tenant_id}")
def change_tenant(tenant_id: str, db: AdminDb, queue: QueueDep, form: Form) -> Response:
    quotas = {name: _number(form.one(name)) for name in tenants.QuotaLimits.model_fields}
    weight = _number(form.one("weight"))
    change = read_as(tenants.TenantChange, quotas=quotas, **({} if weight is None else {"weight": weight}))
    tenants.change_tenant(tenant_id, change, db, queue)
    return RedirectResponse(f"/admin/tenants/{tenant_id}", 303)


class _Lifetime(Strict):
    days: Annotated[float, Field(gt=0, le=_MOST_DAYS)] | None  # None: without end


@router.post("/admin/tenants/{tenant_id}/keys")
def create_key(
    tenant_id: str, viewer: Looking, db: AdminDb, form: Form, request: Request, claim: AdminClaimedKey, answers: AnswerBox
) -> Response:
    days = read_as(_Lifetime, days=_number(form.one("days"))).days
    expires_at = datetime.now(UTC) + timedelta(days=days) if days is not None else None
    new = read_as(tenants.NewKey, name=form.one("name") or "key", scopes=form.all("scope"), expires_at=expires_at)
    return _tenant_page(request, db, tenant_id, tenants.create_key(tenant_id, new, db, claim, answers).secret)


@router.post("/admin/keys/{key_id}/revoke")
def revoke_key(key_id: str, db: AdminDb, service: Service) -> Response:
    key = tenants.revoke_key(key_id, db, service)
    return RedirectResponse(f"/admin/tenants/{key.tenant_id}", 303)


class _PriceOfDay(Strict):
    device_type: price_routes.DeviceType
    from_day: date


@router.post("/admin/prices")
def set_price(db: AdminDb, settings: Config, form: Form) -> Response:
    price = form.one("per_hour")
    said = {
        "device_type": form.one("device_type").strip(),
        "per_hour": price if "," in price else _number(price),
    }  # 2,5 is not 25
    price_routes.set_price(read_as(price_routes.NewPrice, **said, from_day=form.one("from_day") or None), db, settings)
    return RedirectResponse("/admin#prices", 303)


@router.post("/admin/prices/remove")
def remove_price(db: AdminDb, settings: Config, form: Form) -> Response:
    gone = read_as(_PriceOfDay, device_type=form.one("device_type"), from_day=form.one("from_day"))
    price_routes.delete_price(db, settings, gone.device_type, gone.from_day)
    return RedirectResponse("/admin#prices", 303)


@router.post("/admin/models")
def allow_model(db: AdminDb, form: Form, claim: AdminClaimedKey) -> Response:
    base_model_routes.allow_model(
        read_as(base_model_routes.NewModel, name=form.one("name"), source=form.one("source")), db, claim
    )
    return _back()


@router.post("/admin/join-tokens")
def create_join_token(
    viewer: Looking,
    db: AdminDb,
    settings: Config,
    form: Form,
    request: Request,
    claim: AdminClaimedKey,
    answers: AnswerBox,
) -> Response:
    new = read_as(join_token_routes.NewJoinToken, node_name=form.one("node_name"))
    made = join_token_routes.create_join_token(new, db, claim, answers)
    return _page(
        request, viewer, db, settings, secret=made.secret, what=f"The join token of {made.node_name}: its MOTET_JOIN_TOKEN"
    )


@router.post("/admin/join-tokens/{token_id}/revoke")
def revoke_join_token(token_id: str, db: AdminDb) -> Response:
    join_token_routes.delete_join_token(token_id, db)
    return _back()


def _quota_words(session: Session) -> dict[str, str]:
    """What the quotas are called on this fleet, by field."""
    types = select(Node.devices[0]["type"].astext).where(Node.removed_at.is_(None)).distinct()
    return quota_words(device_word(session.scalars(types)))


def _back() -> Response:
    return RedirectResponse("/admin", 303)


def _number(text: str) -> float | int | str | None:
    """The number in a field, None for an empty one; other text stays, for the model to refuse."""
    text = text.strip().replace(",", "")
    if not text:
        return None
    try:
        return int(text)
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError:
        return text
