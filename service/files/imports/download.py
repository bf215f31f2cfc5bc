"""Downloads a file from its source, block by block: resumed where it broke off, compared with what the source announced.

Knows no rows, no tables and no tenants.
"""

import hashlib
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from service.files.imports.sources import IDENTITY, SourceUnavailable, check_encoding, status_refusal, strong_etag
from service.files.models import Pins
from service.http.outbound import Failed, Outbound, Refused, StreamedResponse
from service.http.problems import Invalid, invalid_field

_TRIES = 5  # connections in a row that brought nothing
_PAUSE_SECONDS = 0.5  # before the second of them; doubled for each more


@dataclass
class Download:
    """One file. `trusted`: an origin that the operator named. `pause` waits, and may raise to end the download."""

    outbound: Outbound
    url: str
    token: str = field(repr=False)
    pins: Pins
    total: int | None  # None: not told
    trusted: str
    seconds: float  # for all of it
    pause: Callable[[float], None] = time.sleep

    def run(self, sink: Callable[[bytes], None]) -> None:
        """Pass every byte to `sink` once, in order, then compare them with the pins. Raises SourceUnavailable where another
        attempt may succeed, Invalid where none would, and what `sink` raises."""
        self._received, until, empty = 0, time.monotonic() + self.seconds, 0
        self._sha256, self._blob = hashlib.sha256(), None
        if self.pins.blob_id is not None:
            self._blob = hashlib.sha1(b"blob %d\0" % (self.total or 0), usedforsecurity=False)
        while True:
            before = self._received
            try:
                self._once(sink, until)
                break
            except Failed as error:
                empty = empty + 1 if self._received == before else 0
                host = urlsplit(self.url).netloc
                if time.monotonic() >= until:
                    message = f"did not arrive within {self.seconds:g} s; split it, or raise MOTET_IMPORT_SECONDS"
                    raise invalid_field("source", "too_slow", message) from None
                if empty == _TRIES:
                    raise SourceUnavailable(f"{host} does not send it: {error}.") from None
                if not self._resumable:
                    raise SourceUnavailable(f"{host} broke off after {self._received} bytes: {error}.") from None
            except Refused as error:
                raise invalid_field("source", "source_not_called", str(error)) from None
            self.pause(_PAUSE_SECONDS * 2**empty)
        self._compare()

    @property
    def _resumable(self) -> bool:
        """Whether bytes of a later answer are known to continue those of this one."""
        return self._received == 0 or self.pins != Pins()

    def _once(self, sink: Callable[[bytes], None], until: float) -> None:
        """Take what one answer brings. Raises Failed where it ends too soon."""
        with self.outbound.stream(self.url, self._headers(), self.trusted, until) as got:
            if got.status not in (200, 206):
                raise status_refusal(got.status, urlsplit(got.url).netloc, got.headers)
            check_encoding(got)
            if self.pins.etag is not None and strong_etag(got) != self.pins.etag:
                raise invalid_field("source", "source_changed", "changed while it was imported; import it again")
            skip = self._skipped(got)
            for block in got.blocks:
                new, skip = block[skip:], max(0, skip - len(block))
                if not new:
                    continue
                self._received += len(new)
                if self.total is not None and self._received > self.total:
                    raise self._wrong(f"sent more than the {self.total} bytes that it announced")
                self._sha256.update(new)
                if self._blob is not None:
                    self._blob.update(new)
                sink(new)
        if self.total is not None and self._received < self.total:
            raise Failed(f"it ended after {self._received} of {self.total} bytes")

    def _headers(self) -> Mapping[str, str]:
        said = dict(IDENTITY)
        if self.token:
            said["Authorization"] = f"Bearer {self.token}"
        if self._received:
            said["Range"] = f"bytes={self._received}-"
            if self.pins.etag is not None:
                said["If-Range"] = self.pins.etag
        return said

    def _skipped(self, got: StreamedResponse) -> int:
        """Bytes of this answer that came before."""
        if got.status == 200:
            return self._received
        begins = re.match(r"bytes (\d+)-", got.headers.get("content-range", ""))
        if begins is None or int(begins[1]) != self._received:
            raise SourceUnavailable("The source continued at another byte than it was asked for.")
        return 0

    def _compare(self) -> None:
        if self.pins.sha256 is not None and self._sha256.hexdigest() != self.pins.sha256:
            raise self._wrong(f"sent bytes with the sha256 {self._sha256.hexdigest()}, and announced {self.pins.sha256}")
        if self._blob is not None and self._blob.hexdigest() != self.pins.blob_id:
            raise self._wrong("sent other bytes than git holds at this commit")

    @staticmethod
    def _wrong(what: str) -> Invalid:
        return invalid_field("source", "wrong_bytes", f"{what}; import it again")
