"""Who speaks for the fleet: the join token, a node's credential, a placement's token. Knows no routes.

A placement's token is HMAC-SHA256 over its id and fence, under a key derived from the service's secret for this alone, so
that nothing need be stored to check it. It opens nothing once the task's fence has moved on.
"""

import base64
import hashlib
import hmac
import secrets

from sqlalchemy.orm import Session

from service.fleet.errors import JoinRefused, NodeUnknown, PlacementTokenRefused
from service.fleet.models import Node
from service.settings import Settings


def check_join(settings: Settings, bearer: str | None) -> None:
    """Raise JoinRefused unless `bearer` is the join token."""
    if bearer is None or not hmac.compare_digest(bearer.encode(), settings.join_token.get_secret_value().encode()):
        raise JoinRefused("A node registers with `Authorization: Bearer <join token>`; this token is not the service's.")


def mint_credential() -> tuple[str, bytes]:
    """A new node credential, and what is stored of it."""
    credential = "nc_" + secrets.token_urlsafe(32)
    return credential, _hash(credential)


def check_node(session: Session, node_id: str, bearer: str | None) -> Node:
    """The node that carries this credential. Raises NodeUnknown, also after a newer registration or once it was lost."""
    node = session.get(Node, node_id)
    if node is None or bearer is None or not hmac.compare_digest(node.credential_hash, _hash(bearer)):
        raise NodeUnknown("No node has this id and credential; end all executors and register.")
    if node.status != "ready":
        raise NodeUnknown(f"Node {node.name} was given up after it missed its heartbeats; end all executors and register.")
    return node


def placement_token(settings: Settings, placement_id: str, fence: int) -> str:
    """The bearer of everything said about this placement."""
    key = hmac.digest(settings.secret_key.get_secret_value().encode(), b"motet placement token", "sha256")
    signature = hmac.digest(key, f"{placement_id}.{fence}".encode(), "sha256")
    return "pt_" + base64.urlsafe_b64encode(signature).decode().rstrip("=")


def check_placement(settings: Settings, placement_id: str, fence: int, bearer: str | None) -> None:
    """Raise PlacementTokenRefused unless `bearer` is the placement's token."""
    if bearer is None or not hmac.compare_digest(bearer.encode(), placement_token(settings, placement_id, fence).encode()):
        raise PlacementTokenRefused(f"The token is not that of placement {placement_id}.")


def _hash(credential: str) -> bytes:
    return hashlib.sha256(credential.encode()).digest()
