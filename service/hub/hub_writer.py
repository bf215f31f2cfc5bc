"""Writes one model repository of the hub with a caller's token: made where it is missing, branches, commits. Knows no storage.

URLs, payloads and answers are those of huggingface_hub's `create_repo` and `create_commit`; files that are too large for a
commit go through lfs_upload.py. Requests go through the SSRF guard, which huggingface_hub's own do not.
"""

import base64
import json
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import quote, urljoin

from service.http.outbound import Failed, Fetched, Refused, origin
from service.hub.hub_client import Hub, HubUnavailable
from service.hub.hub_refusals import BranchMoved, HubRefused, NoRevision, refusal, unreadable

SAMPLE = 512  # bytes of a file that the hub decides by
_SECONDS = 120.0  # of a request that sends no large file
_PATHS = 256  # of a question about files
_PAGES = 20  # of a branch's commits
_COMMIT = re.compile(r"[0-9a-f]{40}")
_NEXT = re.compile(r'<([^>]+)>\s*;[^,]*rel="?next"?')
_JSON = {"Content-Type": "application/json"}


@dataclass(frozen=True)
class OfferedFile:
    """A file that may be committed. sample: its first SAMPLE bytes."""

    path: str
    size: int
    sample: bytes


@dataclass(frozen=True)
class UploadMode:
    """How the hub takes a file: by LFS or within the commit; `oid` of what it has there: sha256, or git's blob id."""

    lfs: bool
    oid: str | None


@dataclass(frozen=True)
class LargeFile:
    path: str
    sha256: str
    size: int


class HubWriter:
    """The model repository `name`. Every call may raise HubUnavailable, HubRefused and HubOffline. Thread-safe."""

    def __init__(self, hub: Hub, name: str, token: str) -> None:
        self.hub, self.name, self._token = hub, name, token
        self._api = f"{hub.endpoint}/api/models/{name}"

    def is_private(self) -> bool:
        """Raises NoRepository."""
        private = self._asked("GET", self._api).get("private")
        if not isinstance(private, bool):
            raise unreadable(self.hub.endpoint, self.name)
        return private

    def create(self, private: bool) -> None:
        """Make the repository; it may exist already."""
        organisation, _, name = self.name.partition("/")
        said = {"type": "model", "name": name, "organization": organisation, "private": private}
        got = self.answer("POST", f"{self.hub.endpoint}/api/repos/create", json.dumps(said).encode(), _JSON)
        if got.status == 409 and b"another conflicting operation" not in got.body:
            return
        self._read(got)

    def head(self, branch: str) -> str:
        """The newest commit of the branch. Raises NoRevision, NoRepository."""
        found = self._asked("GET", f"{self._api}/revision/{quote(branch, safe='')}").get("sha")
        return self._commit_id(found)

    def create_branch(self, branch: str) -> None:
        """Make the branch, from the newest commit of main; it may exist already."""
        got = self.answer("POST", f"{self._api}/branch/{quote(branch, safe='')}", b"{}", _JSON)
        if got.status != 409:
            self._checked(got)

    def modes(self, branch: str, files: Sequence[OfferedFile]) -> dict[str, UploadMode]:
        """How the hub takes each file. Raises HubRefused where a .gitignore of the repository leaves one out."""
        found = dict[str, UploadMode]()
        for first in range(0, len(files), _PATHS):
            asked = [
                {"path": one.path, "size": one.size, "sample": base64.b64encode(one.sample).decode()}
                for one in files[first : first + _PATHS]
            ]
            body = json.dumps({"files": asked}).encode()
            said = self._asked("POST", f"{self._api}/preupload/{quote(branch, safe='')}", body, _JSON)
            for one in _objects(said.get("files")):
                if one.get("shouldIgnore"):
                    why = f"the .gitignore of {self.name} leaves out {one.get('path')}; change it there"
                    raise HubRefused("hub_ignores", why)
                oid = one.get("oid")
                found[str(one.get("path"))] = UploadMode(one.get("uploadMode") == "lfs", oid if isinstance(oid, str) else None)
        if missing := [one.path for one in files if one.path not in found]:
            raise unreadable(self.hub.endpoint, missing[0])
        return {one.path: found[one.path] if one.size else UploadMode(False, found[one.path].oid) for one in files}

    def commit(
        self,
        branch: str,
        parent: str | None,
        summary: str,
        description: str,
        small: Mapping[str, bytes],
        large: Iterable[LargeFile],
    ) -> str:
        """Commit `small` files by path, and large ones that the hub has, onto `parent`; the commit. Raises BranchMoved where
        the branch has another one by now, so that of two that are sent onto the same parent one alone is made."""
        header = {"summary": summary, "description": description} | ({"parentCommit": parent} if parent is not None else {})
        lines: list[dict[str, Any]] = [{"key": "header", "value": header}]
        for path, content in small.items():
            value = {"path": path, "encoding": "base64", "content": base64.b64encode(content).decode()}
            lines.append({"key": "file", "value": value})
        for one in large:
            lines.append({"key": "lfsFile", "value": {"path": one.path, "algo": "sha256", "oid": one.sha256, "size": one.size}})
        body = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
        headers = {"Content-Type": "application/x-ndjson"}
        got = self.answer("POST", f"{self._api}/commit/{quote(branch, safe='')}", body, headers)
        if got.status == 412:
            raise BranchMoved
        return self._commit_id(self._read(got).get("commitOid"))

    def commit_with(self, branch: str, words: str, until: str | None) -> str | None:
        """The newest commit of the branch that has `words` in its message, among those after `until`; None without one."""
        url: str | None = f"{self._api}/commits/{quote(branch, safe='')}"
        for _ in range(_PAGES):
            if url is None:
                return None
            try:
                got = self._checked(self.answer("GET", url))
            except NoRevision:
                return None
            for one in _objects(_json(got.body)):
                if words in f"{one.get('title')}\n{one.get('message')}":
                    return self._commit_id(one.get("id"))
                if one.get("id") == until:
                    return None
            url = self._next_page(url, got.headers.get("link", ""))
        return None

    def answer(
        self,
        method: Literal["GET", "POST", "PUT"],
        url: str,
        body: bytes | Iterator[bytes] = b"",
        headers: Mapping[str, str] | None = None,
        seconds: float = _SECONDS,
        signed: bool = False,
    ) -> Fetched:
        """The answer of any status to one request, within so many seconds. signed: the URL itself gives the right, and the
        token stays here. Also raises what `body` raises."""
        token = "" if signed else self._token
        try:
            return self.hub.send(method, url, body, headers, token, time.monotonic() + seconds)
        except Refused as error:
            hint = "an operator can name that host's network in MOTET_HUB_NETWORKS"
            raise HubRefused(
                "hub_redirects", f"The hub names a URL for uploads that is not called: it {error}; {hint}."
            ) from None
        except Failed as error:
            raise HubUnavailable(f"{self.hub.endpoint} does not answer ({error}); it is tried again.", retry_after=10) from None

    def refusal(self, got: Fetched) -> Exception:
        return refusal(got, self.name, self.hub.endpoint, self._token)

    def _asked(
        self, method: Literal["GET", "POST"], url: str, body: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        return self._read(self.answer(method, url, body, headers))

    def _next_page(self, url: str, link: str) -> str | None:
        """Where a Link header of `url` leads, which is on the hub."""
        found = _NEXT.search(link)
        if found is None:
            return None
        try:
            onward = urljoin(url, found[1])
            if origin(onward) == origin(self.hub.endpoint):
                return onward
        except ValueError:
            pass  # it is no URL
        raise unreadable(self.hub.endpoint, self.name)

    def _checked(self, got: Fetched) -> Fetched:
        if not 200 <= got.status < 300:
            raise self.refusal(got)
        return got

    def _read(self, got: Fetched) -> dict[str, Any]:
        """The JSON object of an answer that went well."""
        said = _json(self._checked(got).body)
        if not isinstance(said, dict):
            raise unreadable(self.hub.endpoint, self.name)
        return said

    def _commit_id(self, said: Any) -> str:
        if not isinstance(said, str) or _COMMIT.fullmatch(said) is None:
            raise unreadable(self.hub.endpoint, f"{self.name}, a commit of it")
        return said


def _json(body: bytes) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


def _objects(said: Any) -> list[dict[str, Any]]:
    return [one for one in said if isinstance(one, dict)] if isinstance(said, list) else []
