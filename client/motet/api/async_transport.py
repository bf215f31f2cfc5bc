"""Carries out the steps of API calls with asyncio: `sync_transport`, awaited. Knows no resources."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Generator
from contextlib import AsyncExitStack
from typing import Any, ParamSpec, TypeVar

import httpx

from motet.api import connection
from motet.api.steps import Action, Emit, Listing, Open, Operation, Read, Send, Sleep

P = ParamSpec("P")
T = TypeVar("T")


class AsyncTransport:
    """One base address, one key, one connection pool, of one event loop."""

    def __init__(self, api_url: str, key: str) -> None:
        self.api_url = api_url
        self._http = httpx.AsyncClient(**connection.options(api_url, key))

    async def close(self) -> None:
        await self._http.aclose()

    async def run(self, operation: Operation[T]) -> T:
        """The call's answer."""
        done: list[T] = []
        async for _ in self._drive(operation, done):
            raise AssertionError("an operation emits nothing")
        return done[0]

    async def each(self, listing: Listing[T]) -> AsyncIterator[T]:
        """What the call emits, as it comes."""
        async for value in self._drive(listing, []):
            yield value

    async def _drive(self, steps: Generator[Action | Emit[T], Any, Any], done: list[Any]) -> AsyncGenerator[T, None]:
        answer: Any = None
        body: AsyncIterator[bytes] | None = None
        async with AsyncExitStack() as streams:
            while True:
                try:
                    step = steps.send(answer)
                except StopIteration as end:
                    done.append(end.value)  # an async generator returns nothing
                    return
                answer = None
                try:
                    match step:
                        case Send():
                            answer = await self._http.request(**connection.sent(step, connection.file_blocks_async))
                        case Open():
                            await streams.aclose()
                            answer = await streams.enter_async_context(self._http.stream(**connection.streamed(step)))
                            body = answer.aiter_bytes()
                            if not answer.is_success:
                                await answer.aread()
                        case Read():
                            answer = await anext(body, b"") if body is not None else b""
                        case Sleep():
                            await asyncio.sleep(step.seconds)
                        case Emit():
                            yield step.value
                except httpx.TransportError as error:
                    answer = connection.unreachable(self.api_url, error)
