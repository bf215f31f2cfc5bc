"""Sends this process's spans to the operator's collector: a bounded queue, and a thread that posts batches as OTLP/HTTP JSON.

Nothing waits for it. While the collector is away spans wait in the queue; what does not fit is dropped and counted. One warning
says that it is away, one line that it is back. Like logging, it is one for a process, and `record` does nothing until `start`.
"""

import logging
import socket
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from service.http.outbound import Failed, Outbound, Refused
from service.setting_types import header_fields
from service.settings import Settings
from service.tracing.otlp_json import encode, rejected
from service.tracing.spans import Span

log = logging.getLogger(__name__)

MOST_WAITING = 4096  # spans
_MOST_SENT = 512  # spans of a batch
_GATHER_SECONDS = 0.5
_CALL_SECONDS = 10.0
_MOST_READ = 65_536  # bytes of an answer, whose partialSuccess may come with a long message
_RETRIES = (1.0, 2.0, 5.0, 10.0, 30.0)  # seconds between tries; the last one goes on
_CLOSE_SECONDS = 1.0
_BUSY = (429, 502, 503, 504)  # which the protocol tells to repeat


class SpanExporter:
    """`dropped` is told of each number of spans that were lost. endpoint: to which /v1/traces is appended."""

    def __init__(self, endpoint: str, headers: Mapping[str, str], process: str, dropped: Callable[[int], object]) -> None:
        self._url = endpoint.rstrip("/") + "/v1/traces"
        self._headers = {"Content-Type": "application/json", **headers}
        self._process, self._host, self._dropped = process, socket.gethostname(), dropped
        self._outbound = Outbound(seconds=_CALL_SECONDS)
        self._changed = threading.Condition()
        self._waiting: deque[Span] = deque()
        self._lost = self._failures = 0  # since the collector last took a batch
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="span exporter", daemon=True)
        self._thread.start()

    def put(self, spans: Sequence[Span]) -> None:
        """Queue spans; those that do not fit are dropped. Never blocks."""
        with self._changed:
            room = MOST_WAITING - len(self._waiting)
            self._waiting.extend(spans[:room])
            self._changed.notify()
        self._lose(len(spans) - room)

    def close(self) -> None:
        """Send what waits, for a second at most."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(_CLOSE_SECONDS)

    def _run(self) -> None:
        while batch := self._next():
            if self._send(batch):
                with self._changed:
                    for _ in batch:
                        self._waiting.popleft()

    def _next(self) -> list[Span]:
        """The next batch, which stays in the queue; none once closing has sent them all, or has failed to."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closing)
            pause = _RETRIES[min(self._failures, len(_RETRIES)) - 1] if self._failures else _GATHER_SECONDS
            self._changed.wait_for(lambda: self._closing, timeout=pause)
            if self._closing and self._failures:
                return []
            return [self._waiting[at] for at in range(min(len(self._waiting), _MOST_SENT))]

    def _send(self, batch: Sequence[Span]) -> bool:
        """Post a batch. Whether it is done with: taken, or refused for good."""
        try:
            content = encode(batch, self._process, self._host)
            answer = self._outbound.post(self._url, content, self._headers, _MOST_READ, trusted=self._url)
        except (Failed, Refused, OSError) as error:
            return self._wait(str(error))
        if answer.status in _BUSY:
            return self._wait(f"it answered {answer.status}")
        if answer.status >= 300:
            self._complain(f"it refused {len(batch)} spans with {answer.status}")
            self._lose(len(batch))
            self._failures += 1  # so that a collector that refuses all is asked less and less
            return True
        self._lose(rejected(answer.body, len(batch)))
        if self._failures:
            log.info("the collector %s takes spans again; %d were dropped meanwhile", self._url, self._lost)
        self._failures = self._lost = 0
        return True

    def _wait(self, why: str) -> bool:
        self._complain(why)
        self._failures += 1
        return False

    def _complain(self, why: str) -> None:
        if not self._failures:
            log.warning("spans cannot be sent to %s: %s; up to %d wait here, more are dropped", self._url, why, MOST_WAITING)

    def _lose(self, spans: int) -> None:
        if spans > 0:
            self._lost += spans
            self._dropped(spans)


class _Started:
    exporter: SpanExporter | None = None


def start(settings: Settings, process: str, dropped: Callable[[int], object] = lambda spans: None) -> None:
    """Export this process's spans from now on, if the settings name a collector. Call it after a fork."""
    if settings.otlp_endpoint is not None:
        headers = header_fields(settings.otlp_headers) if settings.otlp_headers is not None else {}
        _Started.exporter = SpanExporter(settings.otlp_endpoint, headers, process, dropped)


def stop() -> None:
    """Export no more. Waits a second at most."""
    exporter, _Started.exporter = _Started.exporter, None
    if exporter is not None:
        exporter.close()


def on() -> bool:
    return _Started.exporter is not None


def record(*spans: Span) -> None:
    """Queue spans for the collector, if there is one."""
    exporter = _Started.exporter  # once: another thread may stop it
    if exporter is not None:
        exporter.put(spans)
