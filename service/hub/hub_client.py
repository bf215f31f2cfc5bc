"""HTTP client of the hub: repository information, small files, ranges of large ones. Knows no model formats, and writes nothing
(hub_writer.py does).

URLs, headers and the shape of answers are huggingface_hub's; the requests go through the SSRF guard. For bases the token is the
service's own HF_TOKEN; for data sets the caller says whose. No token is logged.
"""

import json
import time
from collections.abc import Iterator, Mapping
from typing import Any, Literal
from urllib.parse import quote, urlsplit

from huggingface_hub import DatasetInfo, ModelInfo, hf_hub_url

from service.http.outbound import Failed, Fetched, Outbound, Refused, origin
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
    def token(self) -> str:
        """The service's own; empty without one."""
        return self._token

    def repository(self, name: str) -> "HubRepository":
        """The model's repository `organisation/name`, to be read from now on with HF_TOKEN. Raises HubOffline."""
        return HubRepository(self._online(), name, "model", self._token)

    def dataset(self, name: str, token: str) -> "HubRepository":
        """The data set's repository, to be read with this token; empty: as anybody. Raises HubOffline."""
        return HubRepository(self._online(), name, "dataset", token)

    def check_online(self) -> None:
        """Raises HubOffline where HF_HUB_OFFLINE is set."""
        self._online()

    def _online(self) -> "Hub":
        if self._offline:
            raise HubOffline(
                "HF_HUB_OFFLINE is set for this service; unset it, or allow a folder of the nodes with "
                "POST /v1/admin/models, and upload data sets."
            )
        return self

    def get(self, url: str, headers: Mapping[str, str], most: int, until: float, token: str) -> Fetched:
        """At most `most` bytes from a URL of this hub, not after `until` (time.monotonic). Raises Refused or Failed."""
        return self._outbound.get(url, dict(headers) | headers_with(token), most, trusted=self.endpoint, until=until)

    def send(
        self,
        method: Literal["GET", "POST", "PUT"],
        url: str,
        body: bytes | Iterator[bytes] = b"",
        headers: Mapping[str, str] | None = None,
        token: str = "",
        until: float | None = None,
    ) -> Fetched:
        """One request to this hub or where it sends uploads; a redirect is the answer. `token` goes to the hub's own origin
        alone. Raises Refused, Failed, HubOffline, and what `body` raises."""
        self._online()
        own = token if origin(url) == origin(self.endpoint) else ""
        named = {name: value for name, value in (headers or {}).items() if not (own and name.lower() == "authorization")}
        said = named | headers_with(own)
        if method == "GET":
            return self._outbound.get(url, said, _INFO_BYTES, self.endpoint, until, redirects=0)
        return self._outbound.send(method, url, body, said, _INFO_BYTES, self.endpoint, until)


def check_revision(revision: str) -> None:
    """Raise Invalid for what git takes for the name of no branch, tag or commit, so that no hub is asked about it."""
    parts = revision.split("/")
    odd = any(not part or part.startswith(".") or part.endswith(".lock") for part in parts)
    if odd or ".." in revision or revision.endswith("."):
        way_out = "name a branch, a tag or a commit, such as main"
        raise invalid_field("revision", "revision_unknown", f"no repository has a revision {shown(revision)!r}; {way_out}")


def headers_with(token: str) -> dict[str, str]:
    """Of a request to the hub. huggingface_hub's build_hf_headers asks the hub for a list to name the caller, past the SSRF
    guard."""
    return {"User-Agent": "motet"} | ({"Authorization": f"Bearer {token}"} if token else {})


class HubRepository:
    """One repository, read within the hub's `seconds`. Every call may raise HubUnavailable, and Invalid where the hub refuses.
    Thread-safe."""

    def __init__(self, hub: Hub, name: str, kind: Literal["model", "dataset"], token: str) -> None:
        self.name = name
        self._hub, self._until, self._kind, self._token = hub, time.monotonic() + hub.seconds, kind, token

    def info(self, revision: str) -> ModelInfo:
        """The model's repository at this revision, with its files' sizes and sha256."""
        return self._info(ModelInfo, revision)

    def dataset_info(self, revision: str) -> DatasetInfo:
        """As `info`, of a data set's repository."""
        return self._info(DatasetInfo, revision)

    def content(self, commit: str, path: str, count: int) -> bytes:
        """The first `count` bytes of a file; fewer where it ends before."""
        return self._get(self.url(commit, path), {"Range": f"bytes=0-{count - 1}"}, count, commit).body

    def url(self, commit: str, path: str) -> str:
        """Where the file is downloaded."""
        return hf_hub_url(self.name, path, repo_type=self._kind, revision=commit, endpoint=self._hub.endpoint)

    def _info(self, kind: Any, revision: str) -> Any:
        endpoint = self._hub.endpoint
        url = f"{endpoint}/api/{self._kind}s/{self.name}/revision/{quote(revision, safe='')}?blobs=true"
        got = self._get(url, {}, _INFO_BYTES, revision)
        try:
            return kind(**json.loads(got.body))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise HubUnavailable(
                f"What {endpoint} says of {self.name} cannot be read ({type(error).__name__}); is HF_ENDPOINT a hub?"
            ) from None

    def _get(self, url: str, headers: Mapping[str, str], most: int, revision: str) -> Fetched:
        try:
            got = self._hub.get(url, headers, most, self._until, self._token)
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
        page = f"{self._hub.endpoint}/{'datasets/' if self._kind == 'dataset' else ''}{self.name}"
        if code == "GatedRepo" or (got.status == 403 and code != "RepoNotFound"):
            ours = "set HF_TOKEN of the service and of the nodes to a token of that account"
            theirs = "send a token of that account as `token`"
            way_out = ours if self._kind == "model" else theirs
            return invalid_field("source", "hub_gated", f"{self.name} is gated: accept its terms at {page}, and {way_out}")
        if code == "RevisionNotFound":
            return invalid_field(
                "revision",
                "revision_unknown",
                f"{self.name} has no revision {shown(revision)!r}; {page} lists its branches, tags and commits",
            )
        if got.status in (401, 404):
            host = urlsplit(self._hub.endpoint).netloc
            return invalid_field(
                "source", "hub_unknown", f"{host} has no {self._kind} {self.name}, or {self._unreadable()}; check the name"
            )
        return HubUnavailable(f"{self._hub.endpoint} answers {got.status} for {self.name}; try again later.", retry_after=10)

    def _unreadable(self) -> str:
        sent = "HF_TOKEN" if self._kind == "model" else "the request's `token`"
        if self._token:
            return f"the token in {sent} may not read it"
        return (
            "it is private and HF_TOKEN is not set" if self._kind == "model" else "it is private and the request has no `token`"
        )
