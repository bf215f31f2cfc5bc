"""OpenAPI response schemas for problems, byte streams and event streams; an event stream's response too."""

from collections.abc import AsyncIterator
from typing import Any

from fastapi.responses import StreamingResponse

from service.http.problems import MEDIA_TYPE, ProblemBody

_MEANINGS = {
    400: "The body cannot be read",
    401: "The API key is missing, unknown, revoked or expired",
    403: "The key lacks the scope this needs, or the tenant the quota",
    404: "There is no such thing, or it belongs to another tenant",
    409: "The present state does not allow this; `detail` says why",
    413: "The body is larger than the limit",
    416: "The range lies outside the object",
    422: "The request is wrong; `errors` names each field",
    429: "The key has sent too many requests, or the address too many wrong keys; `Retry-After` says when to go on",
    503: "The database does not answer in time; `Retry-After` says when to try again",
}


def _problem(description: str) -> dict[str, Any]:
    schema = {"$ref": f"#/components/schemas/{ProblemBody.model_config['title']}"}
    return {"description": description, "content": {MEDIA_TYPE: {"schema": schema}}}


def other() -> dict[str, Any]:
    """The default response: any status that a route does not declare."""
    return {"default": _problem("Any other refusal or failure; `code` and `detail` say which")}


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The problem responses of a route, for its `responses`."""
    return {status: _problem(_MEANINGS[status]) for status in statuses}


def event_stream_of(over: str) -> dict[int | str, dict[str, Any]]:
    """The responses of a route of server-sent events; `over` says when there are no more."""
    return {
        200: {"description": "The events", "content": {"text/event-stream": {"schema": {"type": "string"}}}},
        204: {"description": over},
    }


def event_stream(frames: AsyncIterator[str]) -> StreamingResponse:
    """Server-sent events, as they come: no proxy may hold or store them."""
    return StreamingResponse(frames, 200, {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}, "text/event-stream")


def bytes_of(media_type: str, description: str) -> dict[int | str, dict[str, Any]]:
    """A 200 response that is a byte stream, or a redirect to it, for a route's `responses`."""
    bytes_ = {"description": description, "content": {media_type: {"schema": {"type": "string", "format": "binary"}}}}
    return {200: bytes_, 307: {"description": "The bytes are at `Location`, for minutes: with storage in a bucket"}}
