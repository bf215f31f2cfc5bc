"""Roles of members and service accounts, and the one mapping from a role to the scopes of API keys.

A role never gives the scope admin: that is the platform's.
"""

from collections.abc import Mapping
from enum import StrEnum

from service.http.problems import Forbidden


class Scope(StrEnum):
    READ = "read"  # read the tenant's resources
    WRITE = "write"  # create and change them
    ADMIN = "admin"  # manage the whole service's tenants, keys, models and nodes


class Role(StrEnum):
    """In ascending order: each may do what those before it may."""

    VIEWER = "viewer"  # reads
    EDITOR = "editor"  # creates and changes tasks, files, webhooks
    OWNER = "owner"  # manages members, invitations and service accounts too


class RoleMissing(Forbidden):
    code = "role_missing"


_SCOPES: Mapping[Role, frozenset[Scope]] = {
    Role.VIEWER: frozenset({Scope.READ}),
    Role.EDITOR: frozenset({Scope.READ, Scope.WRITE}),
    Role.OWNER: frozenset({Scope.READ, Scope.WRITE}),
}
_ORDER = list(Role)


def scopes_of(role: Role) -> frozenset[Scope]:
    """The scopes that a key of this role may have."""
    return _SCOPES[role]


def lower(one: Role, other: Role) -> Role:
    """The role of the two that may do less."""
    return min(one, other, key=_ORDER.index)
