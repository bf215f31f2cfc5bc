"""A password for each role of a server, derived from the one it was made with: whoever has a role's cannot find the others."""

import hashlib
import hmac


def password_of(role: str, secret: str) -> str:
    """64 hex digits."""
    return hmac.digest(secret.encode(), f"motet role {role}".encode(), hashlib.sha256).hex()
