"""Calls about what a tenant used and may have, its keys, the audit log; and what admins do with tenants."""

from collections.abc import Mapping, Sequence
from datetime import date
from typing import Any

from motet.api.received_answers import validated
from motet.api.resources import AuditEntry, Key, Price, PriceList, Quotas, SignInLink, Tenant, Usage
from motet.api.steps import Listing, Operation, at, change, entries, gathered, get, make, one, pages


def usage(month: str | None = None) -> Operation[Usage]:
    """What was used in a month, such as 2026-11; left out, this one."""
    first, *others = yield from gathered(pages("/v1/usage", {"month": month}))
    tasks = [task for page in (first, *others) for task in page.get("data", ())]
    return validated(Usage, first | {"data": tasks}, "/v1/usage")


def quotas() -> Operation[Quotas]:
    """The tenant's quotas and what is used of them."""
    return one(Quotas, get("/v1/quotas"))


def prices() -> Operation[PriceList]:
    """What an hour of each type of GPU costs, and from which day on."""
    return one(PriceList, get("/v1/prices"))


def audit(action: str | None = None) -> Listing[AuditEntry]:
    """Who did what in this tenant, newest first; `action` is an operation such as cancel_task."""
    return entries(AuditEntry, "/v1/audit", {"action": action})


def keys() -> Listing[Key]:
    """This tenant's keys, newest first."""
    return entries(Key, "/v1/keys")


def create_key(name: str, scopes: Sequence[str] = ("read", "write"), expires_at: str | None = None) -> Operation[Key]:
    """Another key of this tenant, with no right that the calling key lacks; `secret` is shown this once."""
    return one(Key, make("/v1/keys", json=_key(name, scopes, expires_at)))


def revoke_key(key_id: str) -> Operation[Key]:
    """Revoke one of this tenant's keys."""
    return one(Key, change("DELETE", at("/v1/keys/{}", key_id)))


def sign_in_link() -> Operation[SignInLink]:
    """A link that signs a browser in to the dashboard with this key's rights, once, within 15 minutes."""
    return one(SignInLink, make("/v1/sign-in-links", json={}))


def tenants() -> Listing[Tenant]:
    """All tenants, newest first."""
    return entries(Tenant, "/v1/admin/tenants")


def create_tenant(name: str, weight: float = 1.0, quotas: Mapping[str, int | None] | None = None) -> Operation[Tenant]:
    """Make a tenant. `quotas`: running_gpus, queued_tasks, stored_bytes, month_tokens."""
    return one(Tenant, make("/v1/admin/tenants", json={"name": name, "weight": weight, "quotas": dict(quotas or {})}))


def change_tenant(
    tenant_id: str, weight: float | None = None, quotas: Mapping[str, int | None] | None = None
) -> Operation[Tenant]:
    """Change a tenant's weight, or all its quotas."""
    body: dict[str, Any] = {} if weight is None else {"weight": weight}
    body |= {"quotas": dict(quotas)} if quotas else {}
    return one(Tenant, change("PATCH", at("/v1/admin/tenants/{}", tenant_id), body))


def keys_of(tenant_id: str) -> Listing[Key]:
    """A tenant's keys, newest first."""
    return entries(Key, at("/v1/admin/tenants/{}/keys", tenant_id))


def create_key_of(
    tenant_id: str, name: str, scopes: Sequence[str] = ("read", "write"), expires_at: str | None = None
) -> Operation[Key]:
    """Give a tenant a key; `secret` is shown this once."""
    return one(Key, make(at("/v1/admin/tenants/{}/keys", tenant_id), json=_key(name, scopes, expires_at)))


def revoke_key_of(key_id: str) -> Operation[Key]:
    """Revoke any tenant's key."""
    return one(Key, change("DELETE", at("/v1/admin/keys/{}", key_id)))


def set_price(device_type: str, per_hour: float, from_day: date | None = None) -> Operation[Price]:
    """Set what an hour of one GPU of a type costs from a day on, in UTC; left out, today. The same day again replaces it."""
    body = {"device_type": device_type, "per_hour": per_hour} | ({} if from_day is None else {"from_day": str(from_day)})
    return one(Price, change("PUT", "/v1/admin/prices", body))


def remove_price(device_type: str, from_day: date) -> Operation[Price]:
    """Take a price back; the one before it holds again, or the default."""
    query = {"device_type": device_type, "from_day": str(from_day)}
    return one(Price, change("DELETE", "/v1/admin/prices", query=query))


def whole_audit(tenant_id: str | None = None, action: str | None = None) -> Listing[AuditEntry]:
    """Who did what in all tenants, newest first."""
    return entries(AuditEntry, "/v1/admin/audit", {"tenant_id": tenant_id, "action": action})


def _key(name: str, scopes: Sequence[str], expires_at: str | None) -> dict[str, Any]:
    return {"name": name, "scopes": list(scopes)} | ({} if expires_at is None else {"expires_at": expires_at})
