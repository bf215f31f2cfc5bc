"""Calls about who calls, members of a tenant, invitations, service accounts, and a program's sign-in."""

import time
from typing import Any

from motet.api.errors import ApiError
from motet.api.resources import DeviceSignIn, Invitation, Key, Me, Member, ServiceAccount, SignedIn
from motet.api.steps import Listing, Operation, Sleep, ask, at, change, entries, get, make, one


def me() -> Operation[Me]:
    """Who calls, and what they may do."""
    return one(Me, get("/v1/me"))


def members() -> Listing[Member]:
    """The tenant's members, newest first."""
    return entries(Member, "/v1/members")


def change_role(user_id: str, role: str) -> Operation[Member]:
    """Give a member another role: viewer, editor, owner."""
    return one(Member, change("PATCH", at("/v1/members/{}", user_id), {"role": role}))


def remove(user_id: str) -> Operation[Member]:
    """Remove a member, or leave; their keys and sessions in the tenant end at once."""
    return one(Member, change("DELETE", at("/v1/members/{}", user_id)))


def invite(role: str = "editor", email: str | None = None) -> Operation[Invitation]:
    """Invite somebody; `url` is the link to hand over, shown this once. With an address, only who signs in with it may join."""
    return one(Invitation, make("/v1/invitations", json={"role": role, "email": email}))


def invitations() -> Listing[Invitation]:
    """The tenant's invitations, newest first."""
    return entries(Invitation, "/v1/invitations")


def take_back(invitation_id: str) -> Operation[Invitation]:
    """Take an invitation back."""
    return one(Invitation, change("DELETE", at("/v1/invitations/{}", invitation_id)))


def service_accounts() -> Listing[ServiceAccount]:
    """The tenant's service accounts, newest first."""
    return entries(ServiceAccount, "/v1/service-accounts")


def create_service_account(name: str, role: str = "editor") -> Operation[ServiceAccount]:
    """Make a service account: a viewer or an editor."""
    return one(ServiceAccount, make("/v1/service-accounts", json={"name": name, "role": role}))


def delete_service_account(account_id: str) -> Operation[ServiceAccount]:
    """Delete a service account; its keys end at once."""
    return one(ServiceAccount, change("DELETE", at("/v1/service-accounts/{}", account_id)))


def create_service_account_key(account_id: str, name: str = "key") -> Operation[Key]:
    """Give a service account a key; `secret` is shown this once."""
    return one(Key, make(at("/v1/service-accounts/{}/keys", account_id), json={"name": name}))


def invite_into(tenant_id: str, role: str = "owner", email: str | None = None) -> Operation[Invitation]:
    """Invite somebody into any tenant, such as its first owner."""
    return one(Invitation, make(at("/v1/admin/tenants/{}/invitations", tenant_id), json={"role": role, "email": email}))


def members_of(tenant_id: str) -> Listing[Member]:
    """A tenant's members, newest first."""
    return entries(Member, at("/v1/admin/tenants/{}/members", tenant_id))


def remove_from(tenant_id: str, user_id: str) -> Operation[Member]:
    """Remove a member of any tenant, the last owner too."""
    return one(Member, change("DELETE", at("/v1/admin/tenants/{}/members/{}", tenant_id, user_id)))


def begin_sign_in() -> Operation[DeviceSignIn]:
    """Begin to sign a program in by the service's identity provider. Needs no key."""
    return one(DeviceSignIn, change("POST", "/v1/sign-in/device"))


def wait_for_sign_in(begun: DeviceSignIn, name: str, tenant: str | None = None) -> Operation[SignedIn]:
    """Poll until the person has signed in. Raises ApiError once they said no, or the code expired."""
    said: dict[str, Any] = {"handle": begun.handle, "name": name, "tenant": tenant}
    until, interval = time.monotonic() + begun.expires_in, begun.interval
    while True:
        yield Sleep(interval)
        found = yield from one(SignedIn, ask("/v1/sign-in/device/token", said))
        if found.status != "pending":
            return found
        if time.monotonic() > until:
            raise ApiError(403, {"code": "sign_in_refused", "detail": "Nobody entered the code in time; start again."})
        interval = found.interval or interval
