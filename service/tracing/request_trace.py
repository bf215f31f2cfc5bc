"""The trace of the request that is being answered. Its span is exported only if something was created in the trace."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from service.tracing import span_exporter
from service.tracing.spans import SERVER, Attributes, Span, SpanContext, new_trace


@dataclass
class _RequestTrace:
    context: SpanContext
    parent_id: str | None
    began: float
    taken: bool = False


_current: ContextVar[_RequestTrace | None] = ContextVar("request_trace", default=None)


@contextmanager
def traced(traceparent: str | None) -> Iterator["RequestSpan"]:
    """A request that may create a task: it continues its caller's trace, or begins one. The caller's choice not to sample
    holds."""
    caller = SpanContext.read(traceparent)
    if caller is not None and not caller.sampled:
        yield RequestSpan(None)
        return
    trace = _RequestTrace(caller.child() if caller else new_trace(), caller.span_id if caller else None, time.time())
    token = _current.set(trace)
    try:
        yield RequestSpan(trace)
    finally:
        _current.reset(token)


def take_traceparent() -> str | None:
    """The context that what this request creates belongs to; None where it is not traced."""
    trace = _current.get()
    if trace is None:
        return None
    trace.taken = True
    return trace.context.traceparent


class RequestSpan:
    """The request's own span."""

    def __init__(self, trace: _RequestTrace | None) -> None:
        self._trace = trace

    def answered(self, method: str, route: str, status: int, request_id: str) -> None:
        """Export it, if something was created in its trace. route: the path's template."""
        if self._trace is None or not self._trace.taken:
            return
        attributes: Attributes = {
            "http.request.method": method,
            "http.route": route,
            "http.response.status_code": status,
            "motet.request_id": request_id,
        }
        trace = self._trace
        span_exporter.record(
            Span(
                f"{method} {route}",
                trace.context,
                trace.parent_id,
                trace.began,
                time.time(),
                attributes,
                error=status >= 500,
                kind=SERVER,
            )
        )
