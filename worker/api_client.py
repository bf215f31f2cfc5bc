"""HTTP client of the service's internal API, as a node and for one placement. Knows no threads and no retries.

Each call sends one request and returns the answer or raises. The caller may retry `Unreachable`; every other error is final.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Self, TypeVar
from urllib.parse import urljoin

import httpx
from pydantic import ValidationError

from contract.messages.cached_file_list import CachedFiles
from contract.messages.completion_messages import CompletionPieces, CompletionsGiven, CompletionsWanted, PiecesTaken
from contract.messages.merge_messages import MergeReport
from contract.messages.node_messages import Heartbeat, HeartbeatAnswer, NodeRegistration, NodeWelcome, PlacementsLost
from contract.messages.placement_messages import AnswersOnly, DesiredState, MergeWork, Placement
from contract.messages.report_messages import Report, ReportAck
from contract.messages.upload_messages import FOLLOWS_REDIRECTS, UploadGrant, UploadRequest
from contract.strict import Message

_SECONDS, _CONNECT_SECONDS = 10.0, 3.0
_TIMEOUT = httpx.Timeout(_SECONDS, connect=_CONNECT_SECONDS)
_BLOCK = 2**20
_VERIFIED_A_SECOND = 10 * 2**20  # bytes that the service hashes at least, once an upload is complete
_SAYS = 400  # characters of an error's body that go into the message


class LinkError(Exception):
    """A call to the service failed. The message is one line."""


class Unreachable(LinkError):
    """No answer, or one that is worth a retry: the service is down, busy or restarting."""


class Refused(LinkError):
    """The service understood the request and refused it."""

    def __init__(self, status: int, code: str, message: str, body: dict[str, Any]) -> None:
        super().__init__(message)
        self.status, self.code, self.body = status, code, body


class Unreadable(LinkError):
    """The service's answer does not parse as the message that this worker expects."""


class NodeUnknown(Refused):
    """The credential belongs to an earlier boot or to no node: the node must register again."""


class JoinRefused(Refused):
    """The service lets no node of this name register with this bearer token."""


class FenceStale(Refused):
    """The placement has ended; the service ignored the request."""


class SeqGap(Refused):
    """The report is out of sequence; `expected_seq` is the number that the service expects."""

    @property
    def expected_seq(self) -> int:
        return int(self.body["expected_seq"])


_REFUSALS: dict[str, type[Refused]] = {
    "node_unknown": NodeUnknown,
    "join_refused": JoinRefused,
    "fence_stale": FenceStale,
    "seq_gap": SeqGap,
}


def _answer(response: httpx.Response) -> httpx.Response:
    """The response if it is a success; otherwise raises the LinkError of its status and code."""
    if response.is_success:
        return response
    response.read()
    where = f"{response.request.method} {response.request.url.path}"
    if response.status_code in (408, 425, 429) or response.status_code >= 500:
        raise Unreachable(f"{where}: {response.status_code}")
    try:
        body = response.json()
    except ValueError:  # no JSON, or not even text
        body = {}
    body = body if isinstance(body, dict) else {}
    code = str(body.get("code", ""))
    said = body.get("detail") or response.text[:_SAYS]
    message = f"{where}: {response.status_code} {code} {said}".rstrip()
    raise _REFUSALS.get(code, Refused)(response.status_code, code, message, body)


M = TypeVar("M", bound=Message)


def _read(model: type[M], content: bytes) -> M:
    try:
        return model.model_validate_json(content)
    except ValidationError as error:
        raise Unreadable(f"the service's {model.__name__} cannot be read: {in_words(error)}") from None


def in_words(error: ValidationError) -> str:
    """The first validation error and its location, in one line."""
    first = error.errors(include_url=False, include_input=False)[0]
    return f"{'.'.join(map(str, first['loc'])) or 'the message'}: {first['msg']}"


@dataclass(frozen=True)
class UnreadPlacement:
    """A placement of a desired state, with a task or for answers only, that this worker cannot parse, and why."""

    placement_id: str
    fence: int
    why: str


def _desired(content: bytes) -> tuple[DesiredState, list[UnreadPlacement]]:
    """Parses each placement by itself, so that an unreadable one does not block the others."""
    try:
        said = json.loads(content)
        placements, unread = _each(Placement, said["placements"])
        sessions, also = (None, []) if said.get("sessions") is None else _each(AnswersOnly, said["sessions"])
        merges, others = (None, []) if said.get("merges") is None else _each(MergeWork, said["merges"])
        read = {**said, "placements": placements, "sessions": sessions, "merges": merges}
        return DesiredState.model_validate(read), [*unread, *also, *others]
    except (ValueError, KeyError, TypeError) as error:
        raise Unreadable(f"the service's desired state cannot be read: {error!r}") from None


def _each(model: type[M], given: list[Any]) -> tuple[list[M], list[UnreadPlacement]]:
    read, unread = [], []
    for one in given:
        try:
            read.append(model.model_validate_json(json.dumps(one)))
        except ValidationError as error:
            unread.append(UnreadPlacement(str(one["placement_id"]), int(one["fence"]), in_words(error)))
    return read, unread


class _Link:
    """One base URL and one connection pool. Thread-safe."""

    def __init__(self, api_url: str) -> None:
        self._url = api_url + "/internal/v1/"
        self._http = httpx.Client(timeout=_TIMEOUT)

    def close(self) -> None:
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _send(self, method: str, path: str, bearer: str, message: Message | None = None) -> httpx.Response:
        headers = {"Authorization": f"Bearer {bearer}"}
        content = None
        if message is not None:
            headers["Content-Type"] = "application/json"
            content = message.model_dump_json()
        with self._errors(f"{method} {path}"):
            return _answer(self._http.request(method, self._url + path, headers=headers, content=content))

    @contextmanager
    def _errors(self, what: str) -> Iterator[None]:
        """Raises Unreachable for errors of the connection, and for a link that another thread has closed: its requests end with
        their leases."""
        try:
            yield
        except httpx.HTTPError as error:
            raise Unreachable(f"{what}: {type(error).__name__} {error}".rstrip()) from None
        except RuntimeError:
            if not self._http.is_closed:
                raise
            raise Unreachable(f"{what}: the link is closed") from None


class NodeLink(_Link):
    """The calls of the daemon and its heartbeat, as a node."""

    def register(self, bearer: str, registration: NodeRegistration) -> NodeWelcome:
        """`bearer`: a join token, or the node's credential."""
        return _read(NodeWelcome, self._send("POST", "nodes", bearer, registration).content)

    def heartbeat(self, node_id: str, credential: str, heartbeat: Heartbeat) -> HeartbeatAnswer:
        answer = self._send("POST", f"nodes/{node_id}/heartbeats", credential, heartbeat)
        return _read(HeartbeatAnswer, answer.content)

    def desired(self, node_id: str, credential: str) -> tuple[DesiredState, list[UnreadPlacement]]:
        """The node's desired state, and the placements in it that cannot be parsed."""
        return _desired(self._send("GET", f"nodes/{node_id}/desired", credential).content)

    def unwanted(self, node_id: str, credential: str, kept: CachedFiles) -> CachedFiles:
        """Which of the files cached on this node it must erase."""
        return _read(CachedFiles, self._send("POST", f"nodes/{node_id}/cached-files", credential, kept).content)

    def lost(self, node_id: str, credential: str, lost: PlacementsLost) -> None:
        self._send("POST", f"nodes/{node_id}/lost", credential, lost)


class PlacementLink(_Link):
    """The calls of an executor for its placements, each under the placement's own token."""

    def report(self, placement_id: str, token: str, report: Report) -> ReportAck:
        answer = self._send("POST", f"placements/{placement_id}/reports", token, report)
        return _read(ReportAck, answer.content)

    def file(self, placement_id: str, token: str, file_id: str) -> Iterator[bytes]:
        """The bytes of one of the task's files, in blocks."""
        return self._download(f"placements/{placement_id}/files/{file_id}", token)

    def object(self, placement_id: str, token: str, sha256: str) -> Iterator[bytes]:
        """The bytes of one of the task's checkpoints, in blocks."""
        return self._download(f"placements/{placement_id}/objects/{sha256}", token)

    def base_file(self, placement_id: str, token: str, sha256: str, start: int) -> Iterator[bytes]:
        """The bytes of a file of the placement's base from `start` on, as they come."""
        return self._download(f"placements/{placement_id}/objects/{sha256}", token, start)

    def merge_report(self, placement_id: str, token: str, report: MergeReport) -> None:
        self._send("POST", f"placements/{placement_id}/merge", token, report)

    def completions(self, placement_id: str, token: str, wanted: CompletionsWanted) -> CompletionsGiven:
        """Requests for completions; answered after up to `wanted.wait` seconds."""
        return _read(CompletionsGiven, self._send("POST", f"placements/{placement_id}/completions", token, wanted).content)

    def pieces(self, placement_id: str, token: str, pieces: CompletionPieces) -> PiecesTaken:
        answer = self._send("POST", f"placements/{placement_id}/completion-pieces", token, pieces)
        return _read(PiecesTaken, answer.content)

    def completion_object(self, placement_id: str, token: str, request_id: str, sha256: str) -> Iterator[bytes]:
        """The bytes of a file of the adapter that a claimed request asks, in blocks."""
        return self._download(f"placements/{placement_id}/completions/{request_id}/objects/{sha256}", token)

    def grant(self, placement_id: str, token: str, request: UploadRequest) -> UploadGrant:
        answer = self._send("POST", f"placements/{placement_id}/uploads", token, request)
        return _read(UploadGrant, answer.content)

    def put(self, grant: UploadGrant, path: Path) -> None:
        """Upload a file as the grant says: whole, or in parts to presigned URLs and then a call that has it verified."""
        with self._errors(f"PUT of {path.name}"), path.open("rb") as content:
            for part in grant.parts:
                content.seek(part.offset)
                headers = {"Content-Length": str(part.bytes)}
                _presigned(self._http.put(part.url, headers=headers, content=_blocks(content, part.bytes)))
            if grant.url is not None:
                _answer(self._http.put(urljoin(self._url, grant.url), headers=grant.headers, content=content))
            if grant.complete is not None:
                timeout = httpx.Timeout(_SECONDS + path.stat().st_size / _VERIFIED_A_SECOND, connect=_CONNECT_SECONDS)
                _answer(self._http.post(urljoin(self._url, grant.complete), headers=grant.headers, timeout=timeout))

    def _download(self, path: str, token: str, start: int | None = None) -> Iterator[bytes]:
        """In blocks; with `start` from that byte on, as they come, so that a cut loses nothing."""
        wanted = {"Range": f"bytes={start}-"} if start is not None else {}
        headers = {"Authorization": f"Bearer {token}", FOLLOWS_REDIRECTS: "1"} | wanted
        with self._errors(f"GET {path}"):
            with self._http.stream("GET", self._url + path, headers=headers) as response:
                if response.status_code != httpx.codes.TEMPORARY_REDIRECT:
                    yield from _body(_answer(response), start)
                    return
                presigned = response.headers["location"]
            with self._http.stream("GET", presigned, headers=wanted) as response:  # without the token: it is not for the bucket
                yield from _body(_presigned(response), start)


def _body(response: httpx.Response, start: int | None) -> Iterator[bytes]:
    """The body's blocks; with `start`, what lies from that byte on, also where the whole object is sent."""
    if start is None:
        yield from response.iter_bytes(_BLOCK)
        return
    skip = 0 if response.status_code == httpx.codes.PARTIAL_CONTENT else start
    for block in response.iter_bytes():
        new, skip = block[skip:], max(0, skip - len(block))
        yield new


def _presigned(response: httpx.Response) -> httpx.Response:
    """The bucket's answer if it is a success. Otherwise raises Unreachable: the next try asks the service for another URL, and
    the service says what is wrong. The URL, which opens the object, is not told."""
    if response.is_success:
        return response
    raise Unreachable(f"{response.request.method} of an object at {response.request.url.host}: {response.status_code}")


def _blocks(content: BinaryIO, count: int) -> Iterator[bytes]:
    while count > 0 and (block := content.read(min(_BLOCK, count))):
        count -= len(block)
        yield block
