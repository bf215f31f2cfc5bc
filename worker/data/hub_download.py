"""Downloads one file of a base from the hub: resumed where it stopped, verified by sha256. Knows no leases and no cache.

URLs and headers are huggingface_hub's. The bytes come here block by block, so that a caller sees progress and can end it.
"""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Self

import httpx
from huggingface_hub import hf_hub_url

from contract.messages.placement_messages import HUB_SCHEME, BaseFile
from worker.data.disk_full import room_needed

_BLOCK = 2**20
_TIMEOUT = httpx.Timeout(30.0, connect=10.0)


class HubAway(Exception):
    """The hub does not answer, or stopped in the middle. What came stays; a retry may succeed."""


class HubRefuses(ValueError):
    """The hub does not give the file to this node, and a retry would not help."""


class WrongHubBytes(Exception):
    """The downloaded file has not the sha256 that the service pinned. It is removed."""


class HubDownloads:
    """Downloads from one hub, with one token. Thread-safe."""

    def __init__(self, endpoint: str, token: str | None) -> None:
        self._endpoint, self._token = endpoint.rstrip("/"), token
        self._hashed: dict[Path, tuple[int, hashlib._Hash]] = {}  # what is there, so that a retry need not read it again
        self._http = httpx.Client(timeout=_TIMEOUT, follow_redirects=True)  # another host gets no Authorization

    def close(self) -> None:
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def fetch(self, source: str, commit: str, file: BaseFile, path: Path, note: Callable[[int], None]) -> None:
        """Complete the file at `path`, where its beginning may lie already. `note` is called with the bytes of each block that
        is there, and may raise to end the download. Raises HubAway, HubRefuses, WrongHubBytes and DiskFull."""
        repository = source.removeprefix(HUB_SCHEME)
        with room_needed(path.parent):
            digest, size = self._present(path, file.bytes, note)
            if size < file.bytes:
                size = self._append(repository, commit, file, path, size, digest, note)
        if size != file.bytes or digest.hexdigest() != file.sha256:
            path.unlink()
            raise WrongHubBytes(f"{file.path} of {repository} came with other bytes than the service pinned")

    def _present(self, path: Path, most: int, note: Callable[[int], None]) -> "tuple[hashlib._Hash, int]":
        """The hash and size of what is there; nothing is, where it is longer than it should be."""
        path.touch()
        if path.stat().st_size > most:
            path.write_bytes(b"")
        size, digest = self._hashed.pop(path, (0, hashlib.sha256()))
        if path.stat().st_size != size:
            size, digest = 0, hashlib.sha256()
        note(size)
        with path.open("rb") as kept:
            kept.seek(size)
            while block := kept.read(_BLOCK):
                digest.update(block)
                size += len(block)
                note(len(block))
        self._hashed[path] = size, digest.copy()
        return digest, size

    def _append(
        self,
        repository: str,
        commit: str,
        file: BaseFile,
        path: Path,
        size: int,
        digest: "hashlib._Hash",
        note: Callable[[int], None],
    ) -> int:
        url = hf_hub_url(repository, file.path, revision=commit, endpoint=self._endpoint)
        headers = {"User-Agent": "motet", "Accept-Encoding": "identity", "Range": f"bytes={size}-"}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        try:
            with self._http.stream("GET", url, headers=headers) as response:
                skip = size if self._status(response, repository) == httpx.codes.OK else 0  # it sends all of it once more
                with path.open("ab") as kept:
                    for block in response.iter_raw():  # as it comes, so that a cut loses nothing
                        new, skip = block[skip:], max(0, skip - len(block))
                        kept.write(new)
                        digest.update(new)
                        size += len(new)
                        note(len(new))
                        if size > file.bytes:
                            break
        except httpx.HTTPError as error:
            self._hashed[path] = size, digest
            raise HubAway(f"{type(error).__name__} {error}".rstrip()) from None
        if size < file.bytes:
            raise HubAway(f"{file.path} ended after {size} of {file.bytes} bytes")
        return size

    def _status(self, response: httpx.Response, repository: str) -> int:
        status = response.status_code
        if status in (httpx.codes.OK, httpx.codes.PARTIAL_CONTENT):
            return status
        if (
            status in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN)
            and response.request.url.host == httpx.URL(self._endpoint).host
        ):
            known = "its HF_TOKEN may not read it" if self._token else "HF_TOKEN is not set for this worker"
            raise HubRefuses(
                f"the hub does not give {repository} to this node ({status}): {known}; accept the repository's terms with an "
                "account, set HF_TOKEN of the worker to that account's token, and start it anew"
            )
        if status in (httpx.codes.NOT_FOUND, httpx.codes.GONE):
            raise HubRefuses(
                f"the hub has no {repository} at the pinned commit any more ({status}); an admin names another revision with "
                "POST /v1/models, or a folder with POST /v1/admin/models"
            )
        raise HubAway(f"{self._endpoint} answered {status}")
