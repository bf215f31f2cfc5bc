"""Spans as values, and W3C trace context (https://www.w3.org/TR/trace-context/). Knows no exporter and no task.

A span's id may be derived from what the span is of, so that a process can name a parent that another one exports later.
"""

import hashlib
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

SERVER, INTERNAL = 2, 1  # OTLP's span kinds
_TRACEPARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_SAMPLED = 1

Attributes = Mapping[str, str | int | float | bool]


@dataclass(frozen=True)
class SpanContext:
    """A span's place: 32 and 16 hexadecimal digits."""

    trace_id: str
    span_id: str
    sampled: bool = True

    @classmethod
    def read(cls, traceparent: str | None) -> Self | None:
        """Of a `traceparent` header; None where there is none, or one that the standard tells to ignore."""
        found = _TRACEPARENT.fullmatch(traceparent or "")
        if found is None:
            return None
        version, trace_id, span_id, flags, rest = found.groups()
        if version == "ff" or (version == "00" and rest) or not int(trace_id, 16) or not int(span_id, 16):
            return None
        return cls(trace_id, span_id, bool(int(flags, 16) & _SAMPLED))

    @property
    def traceparent(self) -> str:
        return f"00-{self.trace_id}-{self.span_id}-{int(self.sampled):02x}"

    def of(self, what: str) -> Self:
        """The context of the one span of this trace that stands for `what`: the same in every process."""
        return type(self)(self.trace_id, hashlib.sha256(f"{self.trace_id} {what}".encode()).hexdigest()[:16], self.sampled)

    def child(self) -> Self:
        """The context of a new span of this trace."""
        return type(self)(self.trace_id, secrets.token_hex(8), self.sampled)


def new_trace() -> SpanContext:
    return SpanContext(secrets.token_hex(16), secrets.token_hex(8))


@dataclass(frozen=True)
class Span:
    """A span that has ended. began, ended: seconds of the Unix epoch. error: whether its status is an error. process, host:
    where it ran, if not here."""

    name: str
    context: SpanContext
    parent_id: str | None
    began: float
    ended: float
    attributes: Attributes = field(default_factory=dict)
    error: bool = False
    kind: int = INTERNAL
    process: str | None = None
    host: str | None = None
