"""Authenticates the fleet: a node by its credential, a placement by its token. Knows no routes.

A placement's token holds its fence and an HMAC-SHA256 over its id and fence, under a key derived from the service's secret for
this purpose alone, so that a forged token is refused without the database. The token is valid as long as the placement, its
task's fence and its lease, which reports.own_placement checks at each use.
"""

import base64
import hashlib
import hmac
import secrets

from sqlalchemy.orm import Session

from service.fleet.errors import NodeUnknown, PlacementTokenRefused
from service.fleet.models import Node
from service.http.problems import shown
from service.settings import Settings

_FENCE_DIGITS = 19  # of the largest bigint


def mint_credential() -> str:
    """A credential for a new node that proposed none."""
    return "nc_" + secrets.token_urlsafe(32)


def check_node(session: Session, node_id: str, bearer: str | None) -> Node:
    """The node with this credential. Raises NodeUnknown, also if the node has registered again since, or was lost."""
    node = session.get(Node, node_id)
    if node is None or bearer is None or not hmac.compare_digest(node.credential_hash, credential_hash(bearer)):
        raise NodeUnknown("No node has this id and credential; end all executors and register.")
    if node.status != "ready":
        raise NodeUnknown(f"Node {node.name} was given up after it missed its heartbeats; end all executors and register.")
    return node


def placement_token(settings: Settings, placement_id: str, fence: int) -> str:
    """The bearer token of every request about this placement."""
    return f"pt_{fence}_{_signature(settings, placement_id, fence)}"


def check_placement(settings: Settings, placement_id: str, bearer: str | None) -> int:
    """The fence in the token, checked without the database. Raises PlacementTokenRefused if not signed for this placement."""
    fence, _, signature = (bearer or "").removeprefix("pt_").partition("_")
    if not (fence.isascii() and fence.isdigit() and len(fence) <= _FENCE_DIGITS):
        raise token_refused(placement_id)
    if not hmac.compare_digest(signature.encode(), _signature(settings, placement_id, int(fence)).encode()):
        raise token_refused(placement_id)
    return int(fence)


def token_refused(placement_id: str) -> PlacementTokenRefused:
    return PlacementTokenRefused(f"The token is not that of placement {shown(placement_id)}.")


def _signature(settings: Settings, placement_id: str, fence: int) -> str:
    key = hmac.digest(settings.secret_key.get_secret_value().encode(), b"motet placement token", "sha256")
    signature = hmac.digest(key, f"{placement_id}.{fence}".encode(errors="surrogatepass"), "sha256")
    return base64.urlsafe_b64encode(signature).decode().rstrip("=")


def credential_hash(credential: str) -> bytes:
    """SHA-256 under which a credential or join token is stored. Both are random, so a slow password hash would add nothing."""
    return hashlib.sha256(credential.encode()).digest()
