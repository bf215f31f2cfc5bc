"""An OTLP/HTTP receiver on loopback, as OpenTelemetry's collector is one: requests are parsed by the protocol's own schema."""

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler
from typing import Any

from google.protobuf.json_format import ParseDict
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.http_server import HangUpServer, read_body

_PATIENCE, _HANGS = 120.0, 600.0


@dataclass(frozen=True)
class SeenSpan:
    """A span as the schema reads it."""

    trace: str
    id: str
    parent: str
    name: str
    kind: int
    began: float
    ended: float
    attributes: dict[str, Any]
    resource: dict[str, Any]
    error: bool


class Collector:
    """`status`: what it answers. While `held` is cleared, requests get no answer."""

    def __init__(self) -> None:
        self.status, self.held, self.body = 200, threading.Event(), b"{}"
        self.held.set()
        self.requests: list[dict[str, str]] = []  # header fields of each
        self._spans: list[SeenSpan] = []
        self._changed = threading.Condition()
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                content = read_body(self)
                status = collector.status  # once: what is answered 200 is kept, whenever a test changes it
                collector._take(self.path, {name.lower(): value for name, value in self.headers.items()}, content, status)
                collector.held.wait(_HANGS)
                self.send_response(status)
                self.send_header("Content-Length", str(len(collector.body)))
                self.end_headers()
                self.wfile.write(collector.body)

            def log_message(self, *_: object) -> None:
                pass

        self.server = HangUpServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.server.server_address[1]}"

    def _take(self, path: str, headers: dict[str, str], content: bytes, status: int) -> None:
        assert path == "/v1/traces"
        found = list(_spans(json.loads(content))) if status == 200 else []
        with self._changed:
            self.requests.append(headers)
            self._spans += found
            self._changed.notify_all()

    @property
    def spans(self) -> list[SeenSpan]:
        with self._changed:
            return list(self._spans)

    def until(self, holds: Any) -> list[SeenSpan]:
        """Wait until `holds(spans)`; the spans."""
        with self._changed:
            assert self._changed.wait_for(lambda: holds(self._spans), _PATIENCE), [span.name for span in self._spans]
            return list(self._spans)

    def asked(self, times: int) -> None:
        """Wait for so many requests in all."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.requests) >= times, _PATIENCE)


@contextmanager
def collecting() -> Iterator[Collector]:
    collector = Collector()
    thread = threading.Thread(target=collector.server.serve_forever)
    thread.start()
    try:
        yield collector
    finally:
        collector.held.set()
        collector.server.shutdown()
        thread.join()
        collector.server.server_close()


def _spans(document: dict[str, Any]) -> Iterator[SeenSpan]:
    request = ParseDict(_base64_ids(document), ExportTraceServiceRequest())  # refuses fields that the schema lacks
    for resource in request.resource_spans:
        said = {one.key: one.value.string_value for one in resource.resource.attributes}
        for scope in resource.scope_spans:
            for span in scope.spans:
                assert (len(span.trace_id), len(span.span_id)) == (16, 8)
                yield SeenSpan(
                    span.trace_id.hex(),
                    span.span_id.hex(),
                    span.parent_span_id.hex(),
                    span.name,
                    span.kind,
                    span.start_time_unix_nano / 10**9,
                    span.end_time_unix_nano / 10**9,
                    {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in span.attributes},
                    said,
                    span.status.code == 2,
                )


def _base64_ids(value: Any) -> Any:
    """OTLP's JSON differs from protobuf's in that ids are hexadecimal."""
    if isinstance(value, list):
        return [_base64_ids(one) for one in value]
    if not isinstance(value, dict):
        return value
    ids = ("traceId", "spanId", "parentSpanId")
    return {
        name: base64.b64encode(bytes.fromhex(one)).decode() if name in ids else _base64_ids(one) for name, one in value.items()
    }
