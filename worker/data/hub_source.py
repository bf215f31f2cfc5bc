"""A base's files as the hub sends them, at a pinned commit. Knows no disk, no leases and no other source.

URLs and headers are huggingface_hub's.
"""

from collections.abc import Generator
from typing import Self

import httpx
from huggingface_hub import hf_hub_url

from contract.messages.placement_messages import HUB_SCHEME, BaseFile
from contract.wording.field_mistakes import shown
from worker.data.base_download import SourceAway, SourceRefuses

_TIMEOUT = httpx.Timeout(30.0, connect=10.0)


class HubSource:
    """One repository of one hub, read with one token. Thread-safe."""

    label, way_out = "the hub", "check what HF_ENDPOINT of this node names"

    def __init__(self, endpoint: str, token: str | None, source: str, commit: str) -> None:
        """`source`: hf://organisation/name."""
        self._endpoint, self._token = endpoint.rstrip("/"), token
        self.holder, self._commit = source.removeprefix(HUB_SCHEME), commit
        self._http = httpx.Client(timeout=_TIMEOUT, follow_redirects=True)  # another host gets no Authorization

    def close(self) -> None:
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def blocks(self, file: BaseFile, start: int) -> Generator[bytes]:
        url = hf_hub_url(self.holder, file.path, revision=self._commit, endpoint=self._endpoint)
        headers = {"User-Agent": "motet", "Accept-Encoding": "identity", "Range": f"bytes={start}-"}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        try:
            with self._http.stream("GET", url, headers=headers) as response:
                skip = start if self._status(response) == httpx.codes.OK else 0  # it sends all of it once more
                for block in response.iter_raw():  # as it comes, so that a cut loses nothing
                    new, skip = block[skip:], max(0, skip - len(block))
                    yield new
        except httpx.HTTPError as error:
            raise SourceAway(f"{type(error).__name__} {error}".rstrip()) from None

    def _status(self, response: httpx.Response) -> int:
        status = response.status_code
        if status in (httpx.codes.OK, httpx.codes.PARTIAL_CONTENT):
            return status
        if (
            status in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN)
            and response.request.url.host == httpx.URL(self._endpoint).host
        ):
            known = "its HF_TOKEN may not read it" if self._token else "HF_TOKEN is not set for this worker"
            raise SourceRefuses(
                f"the hub does not give {self.holder} to this node ({status}): {known}; accept the repository's terms with an "
                "account, set HF_TOKEN of the worker to that account's token, and start it anew"
            )
        if status in (httpx.codes.NOT_FOUND, httpx.codes.GONE):
            raise SourceRefuses(
                f"the hub has no {self.holder} at the pinned commit any more ({status}); an admin names another revision with "
                "POST /v1/models, or a folder with POST /v1/admin/models"
            )
        raise SourceAway(f"{shown(self._endpoint)} answered {status}")
