"""Request bodies that would keep the event loop too long: files, read in blocks and worked off in threads, so that nothing
waits for a slow sender; and long JSON, which a thread parses and validates in one go."""

import json
from collections.abc import AsyncIterator, Callable
from typing import Annotated, TypeVar

from fastapi import Depends, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ValidationError
from starlette.concurrency import run_in_threadpool

from service.http.problems import BadRequest, TooLarge

M = TypeVar("M", bound=BaseModel)

BLOCK = 2**20  # bytes handed on at a time, at least, but for the last


async def blocks(request: Request, limit: int, refusal: TooLarge) -> AsyncIterator[bytes]:
    """The body in blocks of about a mebibyte. Raises `refusal` once it has more than `limit` bytes, or says it will."""
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
    """Give the whole body to `sink`, block by block, in threads. Raises TooLarge beyond `limit` bytes."""
    refusal = TooLarge(f"The body may have at most {limit} bytes.", limit=limit)
    async for block in blocks(request, limit, refusal):
        await run_in_threadpool(sink, block)


async def _whole(request: Request) -> bytes:
    return await request.body()


Whole = Annotated[bytes, Depends(_whole)]  # as it came; middleware.py bounds its size


def read_json(model: type[M], body: bytes) -> M:
    """The body as a `model`. Raises what FastAPI would."""
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
