"""Uploads a large file to the hub by Git LFS: one PUT, or parts, then the hub's own check. Knows no storage.

The protocol is git-lfs' batch API with the transfers `basic` and `multipart`, as huggingface_hub speaks it: the header of a
multipart upload has a `chunk_size` and a presigned URL for each part by its number. An object that the hub has is not sent.
"""

import json
import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, urlsplit

from huggingface_hub.lfs import LFS_HEADERS
from huggingface_hub.utils import fix_hf_endpoint_in_url

from service.http.outbound import Fetched
from service.hub.hub_client import HubUnavailable
from service.hub.hub_refusals import HubRefused, unreadable
from service.hub.hub_writer import HubWriter

_TRIES = 4  # of a request, where the connection or the server fails
_PAUSE_SECONDS = 0.5  # before the second of them; doubled for each more
_LEAST_PACE = 64 * 2**10  # bytes a second, below which an upload is given up
_SLACK_SECONDS = 300.0
_MOST_PARTS = 10_000
_OWN = ("host", "content-length", "transfer-encoding", "connection")  # headers that nobody else sets

Blocks = Callable[[int, int], Iterator[bytes]]


@dataclass(frozen=True)
class _Grant:
    """Where an object goes. parts: URLs in order, of `chunk` bytes each; empty for one PUT to `url`. verify: URL, headers."""

    url: str
    headers: Mapping[str, str]
    chunk: int
    parts: tuple[str, ...]
    verify: tuple[str, Mapping[str, str]] | None


class LfsUpload:
    """Uploads to one repository. `pause` waits, and may raise to end the upload. Raises as HubWriter does."""

    def __init__(self, writer: HubWriter, branch: str, pause: Callable[[float], None] = time.sleep) -> None:
        self._writer, self._branch, self._pause = writer, branch, pause
        self._endpoint = writer.hub.endpoint

    def send(self, sha256: str, size: int, blocks: Blocks) -> bool:
        """Bring the object to the hub; False where it had it. `blocks(first, count)`: these bytes of it, from the beginning
        each time."""
        grant = self._grant(sha256, size)
        if grant is None:
            return False
        if grant.parts:
            done = [self._part(url, place, grant.chunk, size, blocks) for place, url in enumerate(grant.parts)]
            parts = [{"partNumber": place + 1, "etag": etag} for place, etag in enumerate(done)]
            self._post(grant.url, {"oid": sha256, "parts": parts}, LFS_HEADERS, signed=True)
        else:
            self._put(grant.url, grant.headers, 0, size, blocks)
        if grant.verify is not None:
            url, headers = grant.verify
            self._post(url, {"oid": sha256, "size": size}, {**_others(headers), "Content-Type": "application/json"})
        return True

    def _grant(self, sha256: str, size: int) -> _Grant | None:
        """None where the hub has the object."""
        asked = {
            "operation": "upload",
            "transfers": ["basic", "multipart"],
            "objects": [{"oid": sha256, "size": size}],
            "hash_algo": "sha256",
            "ref": {"name": unquote(self._branch)},
        }
        url = f"{self._endpoint}/{self._writer.name}.git/info/lfs/objects/batch"
        said = self._read(self._post(url, asked, LFS_HEADERS)).get("objects")
        if not isinstance(said, list) or len(said) != 1 or not isinstance(said[0], dict) or said[0].get("oid") != sha256:
            raise self._unreadable()
        if isinstance(error := said[0].get("error"), dict):
            raise self._object_refused(error)
        actions = said[0].get("actions")
        if actions is None:
            return None
        if not isinstance(actions, dict) or "upload" not in actions:
            raise self._unreadable()
        where, headers = self._action(actions["upload"])
        verify = self._action(actions["verify"]) if actions.get("verify") is not None else None
        if "chunk_size" not in headers:
            return _Grant(where, _others(headers), 0, (), verify)
        return self._in_parts(where, headers, size, verify)

    def _in_parts(
        self, where: str, headers: Mapping[str, str], size: int, verify: tuple[str, Mapping[str, str]] | None
    ) -> _Grant:
        numbered = sorted((int(name), url) for name, url in headers.items() if name.isascii() and name.isdigit())
        said = headers["chunk_size"]
        chunk = int(said) if said.isascii() and said.isdigit() else 0
        if not 0 < len(numbered) <= _MOST_PARTS or chunk == 0 or len(numbered) != math.ceil(size / chunk):
            raise self._unreadable()
        return _Grant(where, {}, chunk, tuple(url for _, url in numbered), verify)

    def _part(self, url: str, place: int, chunk: int, size: int, blocks: Blocks) -> str:
        """Send one part; its ETag."""
        first = place * chunk
        etag = self._put(url, {}, first, min(chunk, size - first), blocks).headers.get("etag", "")
        if not etag:
            raise self._unreadable()
        return etag

    def _put(self, url: str, headers: Mapping[str, str], first: int, count: int, blocks: Blocks) -> Fetched:
        sent = {**headers, "Content-Length": str(count)}
        seconds = _SLACK_SECONDS + count / _LEAST_PACE
        return self._tried(
            lambda: self._writer.answer("PUT", url, blocks(first, count), sent, seconds, signed=True), url, signed=True
        )

    def _post(self, url: str, said: Mapping[str, Any], headers: Mapping[str, str], signed: bool = False) -> Fetched:
        body = json.dumps(said).encode()
        return self._tried(lambda: self._writer.answer("POST", url, body, headers, signed=signed), url, signed)

    def _tried(self, ask: Callable[[], Fetched], url: str, signed: bool) -> Fetched:
        """The answer once one went well. A presigned URL that is refused may have expired: the next attempt gets another."""
        for number in range(1, _TRIES + 1):
            try:
                got = ask()
                if 200 <= got.status < 300:
                    return got
                failed = self._failed(got, url, signed)
            except HubUnavailable as error:
                failed = error
            if not isinstance(failed, HubUnavailable) or number == _TRIES:
                raise failed
            self._pause(_PAUSE_SECONDS * 2 ** (number - 1))
        raise AssertionError("the last try returns or raises")

    def _failed(self, got: Fetched, url: str, signed: bool) -> Exception:
        host = urlsplit(url).netloc
        if 300 <= got.status < 400:
            return HubRefused("hub_redirects", f"{host} redirects an upload of {self._writer.name}, which is not followed.")
        if not signed:
            return self._writer.refusal(got)
        return HubUnavailable(f"{host}, where the hub keeps large files, answers {got.status}; it is tried again.")

    def _object_refused(self, error: Mapping[str, Any]) -> Exception:
        """An error of git-lfs' batch API: of one object, with an HTTP status as its code."""
        status, words = error.get("code"), {"x-error-message": str(error.get("message", ""))}
        return self._writer.refusal(Fetched("", status if isinstance(status, int) else 422, words, b""))

    def _action(self, said: Any) -> tuple[str, dict[str, str]]:
        if not isinstance(said, dict) or not isinstance(said.get("href"), str):
            raise self._unreadable()
        headers = said.get("header") or {}
        if not isinstance(headers, dict):
            raise self._unreadable()
        return fix_hf_endpoint_in_url(said["href"], self._endpoint), {str(name): str(value) for name, value in headers.items()}

    def _read(self, got: Fetched) -> dict[str, Any]:
        try:
            said = json.loads(got.body)
        except (ValueError, RecursionError):
            said = None
        if not isinstance(said, dict):
            raise self._unreadable()
        return said

    def _unreadable(self) -> HubUnavailable:
        return unreadable(self._endpoint, f"uploads to {self._writer.name}")


def _others(headers: Mapping[str, str]) -> dict[str, str]:
    """Those that the upload does not set itself, and that cannot end a header's line."""
    return {
        name: value
        for name, value in headers.items()
        if name.lower() not in _OWN and all(" " <= letter <= "~" for letter in name + value)
    }
