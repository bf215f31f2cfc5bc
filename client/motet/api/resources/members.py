"""Who calls, members of a tenant, invitations, service accounts, and a program's sign-in."""

from datetime import datetime

from pydantic import Field

from contract.strict import Message
from motet.api.resources.account import Key


class MyTenant(Message):
    """A tenant that the caller belongs to."""

    id: str
    name: str
    role: str | None = None


class Me(Message):
    """The caller: the key's rights, and whom it belongs to. `label` is how the audit log names them."""

    tenant_id: str
    tenant: str
    key_id: str
    key: str
    scopes: list[str]
    expires_at: datetime | None = None
    role: str | None = None
    user_id: str | None = None
    service_account_id: str | None = None
    label: str | None = None
    tenants: list[MyTenant] = Field(default=[])


class Member(Message):
    """A member. `email`: only an address that the identity provider calls verified."""

    user_id: str
    role: str
    email: str | None = None
    name: str | None = None
    created_at: datetime
    signed_in_at: datetime

    @property
    def called(self) -> str:
        """What tells who it is: the address, else the name, else the id."""
        return self.email or self.name or self.user_id


class Invitation(Message):
    """A one-time link into a tenant; `url` is shown in the answer that makes it alone."""

    id: str
    tenant_id: str
    role: str
    email: str | None = None
    invited_by: str
    created_at: datetime
    expires_at: datetime
    accepted_at: datetime | None = None
    revoked_at: datetime | None = None
    url: str | None = None


class ServiceAccount(Message):
    """A program's own account in a tenant."""

    id: str
    name: str
    role: str
    created_at: datetime


class DeviceSignIn(Message):
    """A sign-in under way: open the page, enter the code; `handle` is for polling every `interval` seconds."""

    handle: str
    user_code: str
    verification_uri: str
    verification_uri_complete: str | None = None
    expires_in: int
    interval: int


class SignedIn(Message):
    """`status` is pending or signed_in; then `key` is a key of the person's own, and `label` says who they are."""

    status: str
    interval: int | None = None
    key: Key | None = None
    label: str | None = None
    tenant: MyTenant | None = None
