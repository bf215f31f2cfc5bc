"""Seats: no more requests of a kind compute at once than there are seats, whoever fails gives his back, kinds do not mix, and
a seat is taken while the loop has nobody to answer.
"""

import asyncio
import time

import httpx
import pytest
from fastapi import FastAPI

from service import seats

TURNS = 8


class House:
    """An app whose requests stay until they are let go."""

    def __init__(self) -> None:
        self.app, self.inside, self.let_go = FastAPI(), {kind: 0 for kind in seats.SEATS}, asyncio.Event()
        self.app.state.seats = seats.make()
        self.app.post("/submissions")(self.submit)
        self.app.post("/reports")(self.report)

    async def submit(self, seat: seats.Submitting) -> None:
        await self.stay("submissions")

    async def report(self, seat: seats.Reporting) -> None:
        await self.stay("reports")

    async def stay(self, kind: str) -> None:
        self.inside[kind] += 1
        assert self.inside[kind] <= seats.SEATS[kind]
        await self.let_go.wait()
        self.inside[kind] -= 1
        raise ValueError("fails, and leaves its seat")


def test_as_many_compute_as_have_seats() -> None:
    async def many() -> None:
        house = House()
        transport = httpx.ASGITransport(house.app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://house") as client:
            asked = [asyncio.ensure_future(client.post(f"/{kind}")) for kind in seats.SEATS for _ in range(7)]
            while house.inside != seats.SEATS:
                await asyncio.wait(asked, timeout=0.01, return_when=asyncio.FIRST_COMPLETED)
            house.let_go.set()
            assert {answer.status_code for answer in await asyncio.gather(*asked)} == {500}
            assert not any(house.inside.values())

    asyncio.run(asyncio.wait_for(many(), 60))


@pytest.mark.parametrize(
    ("path", "method"), [("/v1/tasks", "post"), ("/internal/v1/placements/{placement_id}/reports", "post")]
)
def test_what_computes_much_takes_a_seat(client, path, method) -> None:
    (route,) = [one for one in client.app.routes if getattr(one, "path", "") == path and method.upper() in one.methods]
    assert any("_seat." in found.call.__qualname__ for found in route.dependant.dependencies)


async def _turns_before_calm() -> int:
    """How many busy turns of the loop a request lets pass, of TURNS that follow each other."""
    loop, passed = asyncio.get_running_loop(), 0

    def busy(left: int) -> None:
        nonlocal passed
        time.sleep(2 * seats._CALM_SECONDS)
        passed += 1
        if left > 1:
            loop.call_soon(busy, left - 1)

    loop.call_soon(busy, TURNS)
    await seats.calm()
    return passed


def test_it_waits_until_the_loop_has_nobody_to_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seats, "_PATIENCE_SECONDS", 3600.0)
    assert asyncio.run(_turns_before_calm()) == TURNS


def test_a_loop_that_is_never_calm_does_not_keep_it_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seats, "_PATIENCE_SECONDS", seats._CALM_SECONDS)
    assert asyncio.run(_turns_before_calm()) < TURNS
