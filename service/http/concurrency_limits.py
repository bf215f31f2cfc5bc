"""Concurrency limits for CPU-bound handlers: more threads than this only compete for the interpreter lock."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Annotated

from fastapi import Depends, Request

# two concurrent submission transactions under full load doubled the latency of polls
# heartbeats of a large fleet come whatever the load: all threads full of them would take every connection from the others
LIMITS = {"submissions": 1, "reports": 2, "heartbeats": 4, "estimates": 1, "hashings": 2, "imports": 4, "assemblies": 2}


def make() -> dict[str, asyncio.Semaphore]:
    """One process's semaphores, by kind."""
    return {kind: asyncio.Semaphore(count) for kind, count in LIMITS.items()}


def _limited(kind: str) -> Callable[[Request], AsyncIterator[None]]:
    async def held(request: Request) -> AsyncIterator[None]:
        semaphore: asyncio.Semaphore = request.app.state.motet.semaphores[kind]
        async with semaphore:
            yield

    return held


# declare as a route's last parameter, so that the other dependencies run before it acquires the semaphore
Submitting = Annotated[None, Depends(_limited("submissions"), scope="function")]
Estimating = Annotated[None, Depends(_limited("estimates"), scope="function")]
Reporting = Annotated[None, Depends(_limited("reports"), scope="function")]
Importing = Annotated[None, Depends(_limited("imports"), scope="function")]  # they wait for the source
Hashing = Annotated[None, Depends(_limited("hashings"), scope="function")]  # uploads that are completed
Assembling = Annotated[None, Depends(_limited("assemblies"), scope="function")]  # a tenant's parts checked and put together
