"""Streaming multipart uploads: parses parts as they arrive and passes the file's bytes straight to an intake.

Knows no tables, and of what a file holds only that its intake checks it.
"""

from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Generic, Protocol, TypeVar

from fastapi import Depends, Request
from python_multipart.exceptions import MultipartParseError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.concurrency import run_in_threadpool

from service.app_state import Config, Store
from service.authentication import Db, Writer
from service.database.engine import Database
from service.files.dataset_intake import FileTooLarge, Intake, IntakeLimits
from service.http.problems import BadRequest, TooLarge, invalid_field, shown
from service.http.request_bodies import blocks
from service.idempotency import idempotency_store
from service.settings import Settings
from service.storage.object_store import Incoming
from service.tenants.api_keys import Principal
from service.usage.quotas import admit_bytes

MAX_NAME = 255
_MAX_HEADER = 8192  # bytes of one header of a part
_MOST_BYTES = 4  # of a character in UTF-8
_OVERHEAD = 2**16  # bytes allowed besides the file's and the texts': boundaries, part headers


class NotMultipart(BadRequest):
    code = "not_multipart"


class Sink(Protocol):
    """Takes a file's bytes as they arrive."""

    def feed(self, block: bytes) -> None: ...


class Checked(Sink, Protocol):
    """Checks a file's bytes as they arrive, and stores them. wanted: what the file is; usual_name: where it has no name."""

    @property
    def wanted(self) -> str: ...

    @property
    def usual_name(self) -> str: ...

    def abandon(self) -> None: ...


I = TypeVar("I", bound=Checked)  # noqa: E741


@dataclass
class Upload(Generic[I]):
    """A completely received file whose check is not finished, and the text parts sent with it."""

    intake: I
    name: str
    texts: Mapping[str, str]


class Parts:
    """The multipart parser's state: the current part, and the parts' contents. `feed` may be called from any thread.

    `known` are the text parts allowed besides the file's, `file`, and the most characters of each.
    """

    def __init__(self, boundary: bytes, intake: Sink, known: Mapping[str, int] | None = None, file: str = "file") -> None:
        self.intake, self.file = intake, file
        self.seen: set[str] = set()
        self.filename: str | None = None
        self.complete = False
        self._known = known or {}
        self._texts: dict[str, bytearray] = {}
        self._part = ""
        self._header, self._value = bytearray(), bytearray()
        self._disposition: bytes = b""
        self._parser = MultipartParser(
            boundary,
            {
                "on_part_begin": self._part_begins,
                "on_header_field": self._header_comes,
                "on_header_value": self._value_comes,
                "on_header_end": self._header_ends,
                "on_headers_finished": self._headers_end,
                "on_part_data": self._data,
                "on_end": self._ends,
            },
        )

    def feed(self, block: bytes) -> None:
        try:
            self._parser.write(block)
        except MultipartParseError as error:
            raise NotMultipart(f"The multipart body is broken: {error}.") from None

    @property
    def text_bytes(self) -> int:
        """The most that the text parts may have together."""
        return _MOST_BYTES * sum(self._known.values())

    def texts(self) -> dict[str, str]:
        """The text parts besides the file, by name. Raises Invalid."""
        return {part: _decoded(part, bytes(held)) for part, held in self._texts.items()}

    def _part_begins(self) -> None:
        self._disposition = b""

    def _header_comes(self, data: bytes, start: int, end: int) -> None:
        self._header += data[start:end]
        self._bound_header()

    def _value_comes(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]
        self._bound_header()

    def _bound_header(self) -> None:
        if len(self._header) + len(self._value) > _MAX_HEADER:
            raise NotMultipart(f"A part has a header of more than {_MAX_HEADER} bytes.")

    def _header_ends(self) -> None:
        if self._header.lower() == b"content-disposition":
            self._disposition = bytes(self._value)
        self._header.clear()
        self._value.clear()

    def _headers_end(self) -> None:
        _, options = parse_options_header(self._disposition)
        self._part = options.get(b"name", b"").decode(errors="backslashreplace")
        if self._part != self.file and self._part not in self._known:
            message = f"is not a part of an upload; it has {', '.join((self.file, *self._known))}"
            raise invalid_field(shown(self._part) or "(unnamed part)", "unknown_field", message)
        if self._part in self.seen:
            raise invalid_field(self._part, "repeated", "was sent twice; upload one file at a time")
        self.seen.add(self._part)
        if self._part != self.file:
            self._texts[self._part] = bytearray()
        elif b"filename" in options:
            self.filename = options[b"filename"].decode(errors="replace")

    def _data(self, data: bytes, start: int, end: int) -> None:
        if self._part == self.file:
            self.intake.feed(data[start:end])
            return
        held = self._texts[self._part]
        held += data[start:end]
        if len(held) > _MOST_BYTES * (most := self._known[self._part]):
            raise invalid_field(self._part, "too_long", f"has more than {most} characters")

    def _ends(self) -> None:
        self.complete = True


async def receive_parts(request: Request, parts: Parts, limit: int, refusal: TooLarge, wanted: str) -> None:
    """Feed the whole body to `parts`: `limit` bytes of the file at most, beyond them `refusal`. `wanted`: what the file is.
    Raises NotMultipart, and Invalid where the file is missing."""
    async for block in blocks(request, limit + parts.text_bytes + _OVERHEAD, refusal):
        await run_in_threadpool(parts.feed, block)
    if not parts.complete:
        raise NotMultipart("The multipart body ends before its last boundary.")
    if parts.file not in parts.seen:
        raise invalid_field(parts.file, "missing", f"is required: {wanted}, as a part called {parts.file}")


@dataclass(frozen=True)
class Kind(Generic[I]):
    """A kind of upload. limit: a file's bytes; refusal: of a larger one; begin: its intake; texts: see Parts.known. names_file:
    whether the text called name is the file's own, instead of that of what it makes."""

    limit: Callable[[Settings], int]
    refusal: Callable[[int], TooLarge]
    begin: Callable[[Incoming, Settings], I]
    texts: Mapping[str, int]
    names_file: bool = True


def receiving(kind: Kind[I]) -> Callable[..., AsyncIterator[Upload[I]]]:
    """A dependency that receives an upload. It removes the stored bytes unless the route finishes the intake."""

    async def received(request: Request, writer: Writer, settings: Config, storage: Store, db: Db) -> AsyncIterator[Upload[I]]:
        limit = kind.limit(settings)
        await run_in_threadpool(_must_have_room, db, writer, request.headers.get("idempotency-key"))
        boundary = boundary_of(request, "a part called file: curl -F file=@train.jsonl ...")
        intake = kind.begin(await run_in_threadpool(storage.receive), settings)
        parts = Parts(boundary, intake, kind.texts)
        try:
            await receive_parts(request, parts, limit, kind.refusal(limit), intake.wanted)
            texts = parts.texts()
            yield Upload(intake, _file_name(kind, parts, texts, intake.usual_name), texts)
        finally:
            await run_in_threadpool(intake.abandon)

    return received


def _file_name(kind: Kind[I], parts: Parts, texts: Mapping[str, str], usual: str) -> str:
    """What the file is called. Raises Invalid."""
    return sane_name(texts.get("name", parts.filename or usual)) if kind.names_file else usual


def data_set(*texts: str) -> Kind[Intake]:
    """An upload of rows, with these text parts besides the file."""
    return Kind(
        lambda settings: settings.max_file_bytes,
        FileTooLarge.bytes,
        lambda incoming, settings: Intake(incoming, IntakeLimits.of(settings)),
        dict.fromkeys(texts, MAX_NAME),
    )


def _must_have_room(db: Database, writer: Principal, key: str | None) -> None:
    """Raise QuotaExceeded before reading the body if not even one more byte fits. The file's size is checked after it arrived.

    Skipped for a replayed Idempotency-Key, whose file is already stored and may itself have used up the quota.
    """
    if key is not None and idempotency_store.answered(db, writer, key):
        return
    with db.begin() as session:
        admit_bytes(session, writer, 1)


Received = Annotated[Upload[Intake], Depends(receiving(data_set("name")))]


def boundary_of(request: Request, wanted: str) -> bytes:
    """The boundary of the request's parts. `wanted`: what it is to hold. Raises NotMultipart."""
    kind, options = parse_options_header(request.headers.get("content-type"))
    if kind != b"multipart/form-data" or not options.get(b"boundary"):
        raise NotMultipart(f"An upload is multipart/form-data with {wanted}")
    return options[b"boundary"]


def _decoded(part: str, held: bytes) -> str:
    try:
        return held.decode()
    except UnicodeDecodeError:
        raise invalid_field(part, "not_utf8", "is not UTF-8") from None


def sane_name(name: str, field: str = "name") -> str:
    """The uploaded file's own name, without folders. `field`: where it stands. Raises Invalid."""
    name = name.replace("\\", "/").rpartition("/")[2].strip()  # old browsers send the whole path
    if name in ("", ".", "..") or len(name) > MAX_NAME or not name.isprintable():
        raise invalid_field(field, "bad_name", f"must have 1 to {MAX_NAME} printable characters beside its folders")
    return name
