"""Derives a password for each role of a server from the server's secret: one role's password reveals no other's."""

import hashlib
import hmac


def password_of(role: str, secret: str) -> str:
    """64 hex digits."""
    return hmac.digest(secret.encode(), f"motet role {role}".encode(), hashlib.sha256).hex()
