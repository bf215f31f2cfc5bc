"""Upload grants: signed tokens that let the bearer PUT one object of a known sha256 and size, for an hour.

The signature is HMAC-SHA256 under a key derived from the service's secret for this purpose only. Knows no storage.
"""

import base64
import hmac
import time
from dataclasses import dataclass

from service.http.problems import Forbidden

GRANT_SECONDS = 3600


class GrantRefused(Forbidden):
    code, title = "grant_refused", "The upload grant is not valid"


@dataclass(frozen=True)
class Granted:
    """The object that a token allows to upload."""

    sha256: str
    size: int


class UploadGrants:
    def __init__(self, secret: str) -> None:
        self._key = hmac.digest(secret.encode(), b"motet upload grant", "sha256")

    def sign(self, sha256: str, size: int) -> str:
        said = f"{sha256}.{size}.{int(time.time()) + GRANT_SECONDS}"
        return f"{said}.{self._signature(said)}"

    def verify(self, token: str) -> Granted:
        """The object that the token allows. Raises GrantRefused if the token is forged, truncated or expired."""
        said, _, signature = token.rpartition(".")
        if not hmac.compare_digest(signature.encode(), self._signature(said).encode()):
            raise GrantRefused("The upload grant was not signed by this service; ask for a new one.")
        sha256, size, until = said.split(".")
        if int(until) < time.time():
            raise GrantRefused("The upload grant has expired; ask for a new one.")
        return Granted(sha256, int(size))

    def _signature(self, said: str) -> str:
        return base64.urlsafe_b64encode(hmac.digest(self._key, said.encode(), "sha256")).decode().rstrip("=")
