"""Upload grants: signed tokens that let the bearer PUT one object of a known sha256 and size, for an hour. Knows no storage."""

import time
from dataclasses import dataclass

from service.http.problems import Forbidden
from service.storage.token_signer import TokenSigner

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
        self._signer = TokenSigner(secret, "motet upload grant")

    def sign(self, sha256: str, size: int) -> str:
        return self._signer.sign(f"{sha256}.{size}.{int(time.time()) + GRANT_SECONDS}")

    def verify(self, token: str) -> Granted:
        """The object that the token allows. Raises GrantRefused if the token is forged, truncated or expired."""
        said = self._signer.read(token)
        if said is None:
            raise GrantRefused("The upload grant was not signed by this service; ask for a new one.")
        sha256, size, until = said.split(".")
        if int(until) < time.time():
            raise GrantRefused("The upload grant has expired; ask for a new one.")
        return Granted(sha256, int(size))
