"""Links to the transfer port, which does for a folder what presigned URLs do for a bucket. Knows no storage.

A link is a signed token that lets everybody who has it GET one object, or one archive, until it expires, or PUT one object.
"""

import base64
import json
import time
from dataclasses import asdict, dataclass
from typing import Literal

from service.http.problems import Forbidden
from service.storage.object_store import DERIVED_LINK_SECONDS, Caller
from service.storage.token_signer import TokenSigner

PREFIX = "/transfers"  # of all paths, by which a proxy tells them from those of the API


class LinkRefused(Forbidden):
    code, title = "link_refused", "The link is not valid"


@dataclass(frozen=True)
class Linked:
    """What a link opens, and as which file it is sent: an object by its sha256, or derived bytes by their name."""

    kind: Literal["object", "derived"]
    name: str
    filename: str
    media_type: str


class TransferLinks:
    """`url`: the port as tenants reach it; None: the API sends them their files itself. `seconds`: how long a download may
    begin."""

    def __init__(self, secret: str, port: int, url: str | None, seconds: float) -> None:
        self._signer = TokenSigner(secret, "motet download link")
        self._port, self._url, self._seconds = port, url and url.rstrip("/"), seconds

    def download(self, linked: Linked, caller: Caller) -> str | None:
        if (base := self.base(caller)) is None:
            return None
        seconds = self._seconds if linked.kind == "object" else min(self._seconds, DERIVED_LINK_SECONDS)
        said = json.dumps(asdict(linked) | {"until": time.time() + seconds}, ensure_ascii=False, separators=(",", ":"))
        return f"{base}{PREFIX}/objects/{self._signer.sign(base64.urlsafe_b64encode(said.encode()).decode())}"

    def upload(self, token: str, caller: Caller) -> str | None:
        """`token`: of an upload grant."""
        base = self.base(caller)
        return f"{base}{PREFIX}/uploads/{token}" if base is not None else None

    def read(self, token: str) -> Linked:
        """What the token of a download opens. Raises LinkRefused if it is forged, truncated or expired."""
        said = self._signer.read(token)
        if said is None:
            raise LinkRefused("The link was not signed by this service; ask the API for the file again.")
        fields = json.loads(base64.urlsafe_b64decode(said))
        if fields.pop("until") < time.time():
            raise LinkRefused("The link has expired; ask the API for the file again.")
        return Linked(**fields)

    def base(self, caller: Caller) -> str | None:
        """Where the caller reaches the port, if that is known. A worker does by the host of its API, unless TLS shows that it
        came through a proxy, as tenants may."""
        if caller.worker and caller.scheme == "http" and caller.host != "":
            host = f"[{caller.host}]" if ":" in caller.host else caller.host
            return f"http://{host}:{self._port}"
        return self._url
