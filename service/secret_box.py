"""Encrypts secrets that must be read back, such as a webhook's, with Fernet. Knows no tables.

Each purpose has its own key, derived from the service's secret key, so a value sealed for one purpose opens for no other.
"""

import base64
import hmac
from collections.abc import Sequence
from typing import Self

from cryptography.fernet import Fernet, InvalidToken, MultiFernet

from service.settings import Settings


class Unsealable(ValueError):
    """Sealed under another secret key, for another purpose, or damaged. The message never holds the secret."""


class SecretBox:
    """Encrypts texts under `secret_key`; decrypts texts sealed under it or under one of `earlier`, the keys it replaced."""

    def __init__(self, secret_key: str, purpose: str, earlier: Sequence[str] = ()) -> None:
        self._purpose = purpose
        self._fernet = MultiFernet([Fernet(_derived(key, purpose)) for key in (secret_key, *earlier)])

    @classmethod
    def of(cls, settings: Settings, purpose: str) -> Self:
        """The box for this purpose under the service's secret keys."""
        earlier = [key.get_secret_value() for key in settings.secret_keys_before]
        return cls(settings.secret_key.get_secret_value(), purpose, earlier)

    def seal(self, secret: str) -> bytes:
        """The ciphertext to store: ASCII, about 1.4 times the secret plus 100 bytes. Equal secrets seal differently."""
        return self._fernet.encrypt(secret.encode())

    def open(self, sealed: bytes) -> str:
        """The decrypted secret. Raises Unsealable."""
        try:
            return self._fernet.decrypt(sealed).decode()
        except InvalidToken:
            way_out = "restore the secret key it was sealed under (MOTET_SECRET_KEY, or MOTET_SECRET_KEYS_BEFORE)"
            raise Unsealable(f"a {self._purpose} cannot be opened: {way_out}, or make a new one") from None

    def renew(self, sealed: bytes) -> bytes:
        """Re-encrypt under the newest key, for key rotation. Raises Unsealable."""
        return self.seal(self.open(sealed))


def _derived(secret_key: str, purpose: str) -> bytes:
    return base64.urlsafe_b64encode(hmac.digest(secret_key.encode(), f"motet sealed {purpose}".encode(), "sha256"))
