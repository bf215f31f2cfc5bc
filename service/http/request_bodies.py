"""Request bodies too large for the event loop: files are read in blocks that threads process, so that no thread waits for a
slow sender; a thread parses and validates long JSON whole. And bodies where none is taken, which are refused."""

import json
from collections.abc import AsyncIterator, Callable
from typing import Annotated, TypeVar

from fastapi import Depends, Request
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError
from starlette.concurrency import run_in_threadpool

from service.http.problems import BadRequest, FieldError, Invalid, TooLarge

M = TypeVar("M", bound=BaseModel)

BLOCK = 2**20  # least bytes per block, except the last


async def blocks(request: Request, limit: int, refusal: TooLarge) -> AsyncIterator[bytes]:
    """The body in blocks of about 1 MiB. Raises `refusal` once it exceeds `limit` bytes or its Content-Length does."""
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > limit:
        raise refusal
    pending: list[bytes] = []
    size = total = 0
    async for chunk in request.stream():
        pending.append(chunk)
        size += len(chunk)
        total += len(chunk)
        if total > limit:
            raise refusal
        if size >= BLOCK:
            yield b"".join(pending)
            pending, size = [], 0
    if size:
        yield b"".join(pending)


async def pour(request: Request, sink: Callable[[bytes], None], limit: int) -> None:
    """Pass the whole body to `sink`, block by block, in threads. Raises TooLarge beyond `limit` bytes."""
    refusal = TooLarge(f"The body may have at most {limit} bytes.", limit=limit)
    async for block in blocks(request, limit, refusal):
        await run_in_threadpool(sink, block)


async def _whole(request: Request) -> bytes:
    return await request.body()


Whole = Annotated[bytes, Depends(_whole)]  # the raw body; middleware.py limits its size


def read_json(model: type[M], body: bytes) -> M:
    """Parse the body as `model`. Raises RequestValidationError as FastAPI would, or BadRequest if it is not UTF-8."""
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        found = [{**one, "loc": ("body", *one["loc"])} for one in error.errors()]
    try:
        json.loads(body)
    except json.JSONDecodeError as error:
        found = [{"type": "json_invalid", "loc": ("body", error.pos), "input": {}, "ctx": {"error": error.msg}}]
        raise RequestValidationError(found, body=error.doc) from None
    except UnicodeDecodeError as error:
        raise BadRequest(f"The body is not UTF-8: {error.reason} at byte {error.start}.") from None
    raise RequestValidationError(found)


async def _refuse_body(request: Request) -> None:
    body = await request.body()
    if b"".join(body.split()) in (b"", b"{}", b"null"):
        return
    route: APIRoute = request.scope["route"]
    named = ", ".join(field.alias for field in route.dependant.query_params)
    hint = f"; what it takes are parameters of the query: {named}" if named else ""
    raise Invalid([FieldError(code="body_not_taken", message=f"this route takes no body{hint}")])


NO_BODY = Depends(_refuse_body)  # an empty object counts as none: some clients always send one
