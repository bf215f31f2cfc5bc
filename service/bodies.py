"""Request bodies that are too large to hold: read in blocks, each worked off in a thread, so that no loop and no thread waits
for a slow sender."""

from collections.abc import AsyncIterator, Callable

from fastapi import Request
from starlette.concurrency import run_in_threadpool

from service.errors import TooLarge

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
