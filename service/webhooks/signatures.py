"""Standard Webhooks signatures (standardwebhooks.com, version 1): HMAC-SHA256 over id, time and body. Pure."""

import base64
import hmac
import secrets
from collections.abc import Sequence

_PREFIX = "whsec_"
USER_AGENT = "motet-webhooks/1"


def new_secret() -> str:
    """256 random bits in the format of Standard Webhooks' libraries."""
    return _PREFIX + base64.b64encode(secrets.token_bytes(32)).decode()


def headers(secrets: Sequence[str], id: str, moment: int, body: bytes) -> dict[str, str]:
    """The request's headers, with a signature under each secret; the receiver knows at least one. `moment`: Unix seconds."""
    signatures = " ".join(f"v1,{_signature(secret, id, moment, body)}" for secret in secrets)
    return {
        "Content-Type": "application/json",
        "User-Agent": USER_AGENT,
        "webhook-id": id,
        "webhook-timestamp": str(moment),
        "webhook-signature": signatures,
    }


def _signature(secret: str, id: str, moment: int, body: bytes) -> str:
    key = base64.b64decode(secret.removeprefix(_PREFIX))
    return base64.b64encode(hmac.digest(key, f"{id}.{moment}.".encode() + body, "sha256")).decode()
