"""HTTP client of the hub: repository information, small files, ranges of large ones. Knows no model formats.

URLs, headers and the shape of answers are huggingface_hub's; the requests go through the SSRF guard. The token is the service's
own HF_TOKEN: none is taken from a request, so none is stored or logged.
"""

import json
import time
from collections.abc import Mapping
from urllib.parse import quote, urlsplit

from huggingface_hub import ModelInfo, hf_hub_url

from service.http.outbound import Failed, Fetched, Outbound, Refused
from service.http.problems import Conflict, Invalid, Unavailable, invalid_field, shown
from service.settings import Settings

SECONDS = 45.0  # for all requests to a repository: less than clients and proxies wait for an answer
_INFO_BYTES = 16 * 2**20


class HubUnavailable(Unavailable):
    code, title = "hub_unavailable", "The hub does not answer"


class HubOffline(Conflict):
    code, title = "hub_offline", "This service may not call the hub"


class Hub:
    """The hub of the settings. `seconds`: for all requests to a repository."""

    def __init__(self, settings: Settings, seconds: float = SECONDS) -> None:
        self.endpoint, self.seconds = settings.hf_endpoint.rstrip("/"), seconds
        self._offline, self._outbound = settings.hf_hub_offline, Outbound(settings.hub_networks, seconds=seconds)
        self._token = settings.hf_token.get_secret_value() if settings.hf_token is not None else ""

    @property
    def has_token(self) -> bool:
        return bool(self._token)

    def repository(self, name: str) -> "HubRepository":
        """The repository `organisation/name`, to be read from now on. Raises HubOffline."""
        if self._offline:
            raise HubOffline("HF_HUB_OFFLINE is set for this service; unset it, or allow a folder with POST /v1/admin/models.")
        return HubRepository(self, name)

    def get(self, url: str, headers: Mapping[str, str], most: int, until: float) -> Fetched:
        """At most `most` bytes from a URL of this hub, not after `until` (time.monotonic). Raises Refused or Failed."""
        # huggingface_hub's build_hf_headers asks the hub for a list to name the caller, past the SSRF guard
        sent = {"User-Agent": "motet", **headers} | ({"Authorization": f"Bearer {self._token}"} if self._token else {})
        return self._outbound.get(url, sent, most, trusted=self.endpoint, until=until)


class HubRepository:
    """One repository, read within the hub's `seconds`. Every call may raise HubUnavailable, and Invalid where the hub refuses.
    Thread-safe."""

    def __init__(self, hub: Hub, name: str) -> None:
        self.name = name
        self._hub, self._until = hub, time.monotonic() + hub.seconds

    def info(self, revision: str) -> ModelInfo:
        """The repository at this revision, with its files' sizes and sha256."""
        endpoint = self._hub.endpoint
        url = f"{endpoint}/api/models/{self.name}/revision/{quote(revision, safe='')}?blobs=true"
        got = self._get(url, {}, _INFO_BYTES, revision)
        try:
            return ModelInfo(**json.loads(got.body))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise HubUnavailable(
                f"What {endpoint} says of {self.name} cannot be read ({type(error).__name__}); is HF_ENDPOINT a hub?"
            ) from None

    def content(self, commit: str, path: str, count: int) -> bytes:
        """The first `count` bytes of a file; fewer where it ends before."""
        url = hf_hub_url(self.name, path, revision=commit, endpoint=self._hub.endpoint)
        return self._get(url, {"Range": f"bytes=0-{count - 1}"}, count, commit).body

    def _get(self, url: str, headers: Mapping[str, str], most: int, revision: str) -> Fetched:
        try:
            got = self._hub.get(url, headers, most, self._until)
        except Refused as error:
            raise invalid_field(
                "source",
                "hub_redirects",
                f"the hub redirects to a URL that is not called: {error}; name that host's network in MOTET_HUB_NETWORKS",
            ) from None
        except Failed as error:
            raise self._away(error) from None
        if got.status in (200, 206):
            return got
        raise self._refusal(got, revision)

    def _away(self, error: Failed) -> HubUnavailable:
        endpoint = self._hub.endpoint
        if time.monotonic() >= self._until:
            return HubUnavailable(
                f"{endpoint} did not send what is read of {self.name} within {self._hub.seconds:g} s; try again later, or set "
                "HF_ENDPOINT to a mirror that is faster from here.",
                retry_after=10,
            )
        return HubUnavailable(f"{endpoint} does not answer ({error}); try again later, or check HF_ENDPOINT.", retry_after=10)

    def _refusal(self, got: Fetched, revision: str) -> Invalid | HubUnavailable:
        code = got.headers.get("x-error-code", "")
        page = f"{self._hub.endpoint}/{self.name}"
        if code == "GatedRepo" or (got.status == 403 and code != "RepoNotFound"):
            return invalid_field(
                "source",
                "hub_gated",
                f"{self.name} is gated: accept its terms at {page}, and set HF_TOKEN of the service and of the nodes to a "
                "token of that account",
            )
        if code == "RevisionNotFound":
            return invalid_field(
                "revision",
                "revision_unknown",
                f"{self.name} has no revision {shown(revision)!r}; {page} lists its branches, tags and commits",
            )
        if got.status in (401, 404):
            known = "the token in HF_TOKEN may not read it" if self._hub.has_token else "it is private and HF_TOKEN is not set"
            return invalid_field(
                "source",
                "hub_unknown",
                f"{urlsplit(self._hub.endpoint).netloc} has no model {self.name}, or {known}; check the name",
            )
        return HubUnavailable(f"{self._hub.endpoint} answers {got.status} for {self.name}; try again later.", retry_after=10)
