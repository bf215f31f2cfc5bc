"""Signs short texts as tokens for URLs: HMAC-SHA256 under a key derived from the service's secret for one purpose only."""

import base64
import hmac


class TokenSigner:
    """`purpose`: tokens of another one are not accepted."""

    def __init__(self, secret: str, purpose: str) -> None:
        self._key = hmac.digest(secret.encode(), purpose.encode(), "sha256")

    def sign(self, said: str) -> str:
        return f"{said}.{self._signature(said)}"

    def read(self, token: str) -> str | None:
        """What was signed; None if the token is forged, truncated or of another purpose."""
        said, _, signature = token.rpartition(".")
        genuine = hmac.compare_digest(signature.encode(), self._signature(said).encode())
        return said if genuine else None

    def _signature(self, said: str) -> str:
        return base64.urlsafe_b64encode(hmac.digest(self._key, said.encode(), "sha256")).decode().rstrip("=")
