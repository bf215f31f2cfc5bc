"""Spans as OTLP's JSON (https://opentelemetry.io/docs/specs/otlp/#json-protobuf-encoding): ids are hexadecimal, 64-bit integers
are strings. Knows no network."""

import json
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from contract.compatibility.version import VERSION
from service.tracing.spans import Attributes, Span

_ERROR = 2  # OTLP's status code


def encode(spans: Sequence[Span], process: str, host: str) -> bytes:
    """An ExportTraceServiceRequest. process, host: of spans that name no other."""
    by_resource: dict[tuple[str, str], list[Span]] = defaultdict(list)
    for span in spans:
        by_resource[span.process or process, span.host or host].append(span)
    return json.dumps(
        {
            "resourceSpans": [
                {
                    "resource": {"attributes": _attributes(_resource(*key))},
                    "scopeSpans": [{"scope": {"name": "motet", "version": VERSION}, "spans": [_span(one) for one in own]}],
                }
                for key, own in by_resource.items()
            ]
        }
    ).encode()


def rejected(body: bytes, sent: int) -> int:
    """How many of `sent` spans an answer of status 200 says were not taken."""
    try:
        said = int(json.loads(body or b"{}")["partialSuccess"]["rejectedSpans"])
    except (KeyError, TypeError, ValueError, OverflowError, RecursionError):
        return 0
    return min(max(said, 0), sent)


def _resource(process: str, host: str) -> Attributes:
    return {"service.namespace": "motet", "service.name": process, "service.version": VERSION, "host.name": host}


def _span(span: Span) -> dict[str, Any]:
    parent = {"parentSpanId": span.parent_id} if span.parent_id is not None else {}
    return {
        "traceId": span.context.trace_id,
        "spanId": span.context.span_id,
        **parent,
        "flags": 1,
        "name": span.name,
        "kind": span.kind,
        "startTimeUnixNano": _nanoseconds(span.began),
        "endTimeUnixNano": _nanoseconds(max(span.began, span.ended)),
        "attributes": _attributes(span.attributes),
        "status": {"code": _ERROR} if span.error else {},
    }


def _nanoseconds(seconds: float) -> str:
    whole = int(seconds)  # apart, since a double holds nanoseconds since 1970 to 256 of them
    return str(whole * 10**9 + round((seconds - whole) * 1e9))


def _attributes(values: Attributes) -> list[dict[str, Any]]:
    return [{"key": key, "value": _value(value)} for key, value in values.items()]


def _value(value: str | int | float | bool) -> dict[str, Any]:
    match value:
        case bool():
            return {"boolValue": value}
        case int():
            return {"intValue": str(value)}
        case float():
            return {"doubleValue": value}
    return {"stringValue": value}
