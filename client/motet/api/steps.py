"""What an API call does, as steps without I/O: a generator yields them, and a driver (threads or asyncio) carries them out.

Each call is written once for `Client` and `AsyncClient` (the sans-I/O pattern): retries, paging, event streams and downloads
live in these generators; `sync_transport` and `async_transport` know nothing but how to send, sleep and read.
"""

import logging
import re
import time
import uuid
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain, repeat
from pathlib import Path
from typing import Any, Generic, TypeVar, cast
from urllib.parse import quote

import httpx
from pydantic import BaseModel

from motet.api.errors import ApiError, BadId, MotetError, NotMotet, Unreachable
from motet.api.received_answers import SEE, checked, contents, problem_in, resource, strange, validated

log = logging.getLogger(__name__)

PAUSES = (0.1, 0.3, 1.0, 2.0, 4.0)  # seconds before each retry of a read: a restarting API is back within their sum
MOST_WAIT_SECONDS = 60.0  # of all waits that the service asks one request for
CONNECT_SECONDS = 5.0
_IN_HAND_SECONDS = 75.0  # the service drops a request whose process died after 60; until then its key is taken
_IN_HAND = "idempotency_in_flight"
_SECONDS = 30.0  # of one request
_IGNORED = "motet-ignored-parameters"
_LOOK_PAUSES = (0.5, 1.0, 2.0, 5.0)  # seconds between two looks at what is followed, the last again and again
_WAITING_ANSWERS = {502, 503, 504}

Query = Mapping[str, Any]
T = TypeVar("T")
M = TypeVar("M", bound=BaseModel)


@dataclass(frozen=True)
class Send:
    """Send a request; the driver answers with the response, or with Unreachable as a value."""

    method: str
    path: str
    query: Query | None = None
    json: Any = None
    files: Any = None  # must be seekable
    content: Path | None = None  # a file whose bytes are the body
    headers: Mapping[str, str] = field(default_factory=dict)
    seconds: float | None = _SECONDS  # None: no limit, since the time depends on the file's size


@dataclass(frozen=True)
class Open:
    """Send a GET, or a POST of `json`, and leave the answer's body to `Read`; answered like Send. What was open before is
    closed."""

    path: str
    headers: Mapping[str, str] = field(default_factory=dict)
    seconds: float = _SECONDS  # of silence
    json: Any = None


@dataclass(frozen=True)
class Read:
    """The open body's next bytes, empty at its end; Unreachable as a value where the connection breaks."""


@dataclass(frozen=True)
class Sleep:
    seconds: float


@dataclass(frozen=True)
class Emit(Generic[T]):
    """Hand this value to the caller, who iterates over the call."""

    value: T


Action = Send | Open | Read | Sleep
Operation = Generator[Action, Any, T]  # a call with one answer
Listing = Generator[Action | Emit[T], Any, None]  # a call with many


def at(template: str, *ids: str, nested: bool = False) -> str:
    """The path with each id in its `{}`, quoted. Raises BadId for what would lead to another path. `nested`: they may hold
    slashes, as a model's name."""
    for id in ids:
        if ("/" in id and not nested) or any(part in ("", ".", "..") for part in id.split("/")):
            raise BadId(f"{id!r} is no id; the lists, such as `motet tasks`, show ids")
    return template.format(*(quote(id) for id in ids))


def get(
    path: str, query: Query | None = None, headers: Mapping[str, str] | None = None, wait: float = 0
) -> Operation[httpx.Response]:
    """A read, retried while the connection fails. `wait`: seconds the service may hold the request. 304 is an answer, not an
    error."""
    return _exchange(Send("GET", path, query=query, headers=headers or {}, seconds=_SECONDS + wait), again=True)


def ask(path: str, json: Any) -> Operation[httpx.Response]:
    """A POST that changes nothing, such as an estimate: retried like a read."""
    return _exchange(Send("POST", path, json=json), again=True)


def change(
    method: str, path: str, json: Any = None, seconds: float = _SECONDS, query: Query | None = None
) -> Operation[httpx.Response]:
    """A change, sent once: when the answer is lost, the client cannot know whether the service applied it."""
    return _exchange(Send(method, path, query=query, json=json, seconds=seconds), again=False)


def remove(path: str) -> Operation[None]:
    """A DELETE whose answer is empty."""
    answer = yield from change("DELETE", path)
    if answer.status_code != 204:
        raise NotMotet(answer.status_code, strange(answer))


def make(path: str, json: Any = None, files: Any = None, seconds: float = _SECONDS) -> Operation[httpx.Response]:
    """A POST that creates something under its own Idempotency-Key: retried while the connection fails, and the service
    creates it once. Files must be seekable."""
    key = {"Idempotency-Key": uuid.uuid4().hex}
    return _exchange(Send("POST", path, json=json, files=files, headers=key, seconds=None if files else seconds), again=True)


def put(path: str, content: Path) -> Operation[httpx.Response]:
    """Send a file's bytes to where they belong: again while the connection fails, which changes nothing more. Raises OSError
    where the file cannot be read."""
    return _exchange(Send("PUT", path, content=content, seconds=None), again=True)


def one(model: type[M], answer: Operation[httpx.Response]) -> Operation[M]:
    """The answer's body as this resource."""
    return resource(model, (yield from answer))


def pages(path: str, query: Query | None = None) -> Listing[dict[str, Any]]:
    """Each page of a paginated list as received."""
    cursor = None
    while True:
        page = contents((yield from get(path, {**(query or {}), "cursor": cursor})))
        yield Emit(page)
        cursor = page.get("next_cursor")
        if cursor is None:
            return


def entries(model: type[M], path: str, query: Query | None = None) -> Listing[M]:
    """Every entry of a paginated list."""
    answer: Any = None
    listing = pages(path, query)
    while True:
        try:
            step = listing.send(answer)
        except StopIteration:
            return
        if isinstance(step, Emit):
            if "data" not in step.value:
                raise NotMotet(200, f"{path} answered without a list; {SEE}")
            for entry in step.value["data"]:
                yield Emit(validated(model, entry, path))
            answer = None
        else:
            answer = yield step


def gathered(listing: Listing[T]) -> Operation[list[T]]:
    """All that a listing emits."""
    found: list[T] = []
    answer: Any = None
    while True:
        try:
            step = listing.send(answer)
        except StopIteration:
            return found
        if isinstance(step, Emit):
            found.append(step.value)
            answer = None
        else:
            answer = yield step


def followed(look: Callable[[], Operation[T]], ended: Callable[[T], bool]) -> Listing[T]:
    """What a `look` finds now, and at each further one until that has ended."""
    for pause in chain(_LOOK_PAUSES, repeat(_LOOK_PAUSES[-1])):
        found = yield from look()
        yield Emit(found)
        if ended(found):
            return
        yield Sleep(pause)


def awaited(listing: Listing[T], done: Callable[[T], bool], timeout: float | None) -> Operation[tuple[T, bool]]:
    """What a listing that follows something emits once it is `done`, and True; or what it emitted last after `timeout` seconds,
    and False. The listing goes on until then."""
    deadline = None if timeout is None else time.monotonic() + timeout
    answer: Any = None
    while True:
        step = listing.send(answer)
        answer = None
        if not isinstance(step, Emit):
            answer = yield step
        elif done(step.value):
            return step.value, True
        elif deadline is not None and time.monotonic() >= deadline:
            return step.value, False


def opened(
    path: str, headers: Mapping[str, str] | None = None, seconds: float = _SECONDS, json: Any = None
) -> Operation[httpx.Response]:
    """A body too large for memory, or without end, to be read by `Read`. Raises ApiError, Unreachable."""
    return checked((yield from _admitted(Open(path, headers or {}, seconds, json))))


def chunk() -> Operation[bytes]:
    """The open body's next bytes, empty at its end. Raises Unreachable where the connection breaks."""
    found = yield Read()
    if isinstance(found, Unreachable):
        raise found
    return cast(bytes, found)


def may_pass(error: MotetError) -> bool:
    """Whether the same read may succeed a little later: there was no answer, or one of a service that is starting."""
    return isinstance(error, Unreachable) or (isinstance(error, ApiError) and error.status in _WAITING_ANSWERS)


def _exchange(request: Send, again: bool) -> Operation[httpx.Response]:
    pauses: Iterator[float] = iter(PAUSES if again else ())
    until = time.monotonic() + _IN_HAND_SECONDS
    while True:
        answer = yield from _admitted(request)
        pause = None
        if isinstance(answer, Unreachable) or answer.status_code in _WAITING_ANSWERS:
            pause = next(pauses, None)
        elif again and answer.status_code == 409 and problem_in(answer).get("code") == _IN_HAND and time.monotonic() < until:
            pause = 1.0
        if pause is None:
            return checked(answer)
        yield Sleep(pause)


def _admitted(request: Send | Open) -> Operation[httpx.Response | Unreachable]:
    """The answer, after waits that the service asks for: what it refused with 429 had no effect, so a change is sent again too.
    One that asks for more than MOST_WAIT_SECONDS in all is the answer."""
    left = MOST_WAIT_SECONDS
    while True:
        answer: httpx.Response | Unreachable = yield request
        asked = "" if isinstance(answer, Unreachable) else answer.headers.get("retry-after", "")
        if not isinstance(answer, Unreachable) and (ignored := answer.headers.get(_IGNORED)) is not None:
            _warn_of_ignored(ignored)
        if isinstance(answer, Unreachable) or answer.status_code != 429 or not re.fullmatch("[0-9]{1,4}", asked):
            return answer
        seconds = max(1.0, float(asked))
        if seconds > left:
            return answer
        if left == MOST_WAIT_SECONDS:
            log.warning("waiting up to %g s, since the service asks to: %s", left, problem_in(answer).get("detail", "429"))
        left -= seconds
        yield Sleep(seconds)


@lru_cache(256)
def _warn_of_ignored(names: str) -> None:
    """Once a process: who follows a task asks again and again."""
    log.warning("the service ignored parameters that it does not know: %s (it may be older than this client)", names[:1024])
