"""Seats for requests that compute: as few as keep the database busy. All threads share one interpreter with the event loop, and
each that computes takes its turn from all who poll or stream. Knows no routes.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Annotated

from fastapi import Depends, Request

# with two submissions at once beside a full load, they took a quarter less at the 99th percentile, and polls twice as long
SEATS = {"submissions": 1, "reports": 2}


def make() -> dict[str, asyncio.Semaphore]:
    """The seats of one process, by kind."""
    return {kind: asyncio.Semaphore(count) for kind, count in SEATS.items()}


@asynccontextmanager
async def seated(request: Request, kind: str) -> AsyncIterator[None]:
    """Hold a seat of this kind."""
    seats: asyncio.Semaphore = request.app.state.seats[kind]
    async with seats:
        yield


def _seat(kind: str) -> Callable[[Request], AsyncIterator[None]]:
    async def held(request: Request) -> AsyncIterator[None]:
        async with seated(request, kind):
            yield

    return held


# a route's last parameter, so that the seat is held no longer than the work takes
Submitting = Annotated[None, Depends(_seat("submissions"), scope="function")]
Reporting = Annotated[None, Depends(_seat("reports"), scope="function")]
