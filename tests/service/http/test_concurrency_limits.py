"""Concurrency limits: no more requests of a kind run at once than its semaphore allows, and one that fails frees its place."""

import asyncio
from types import SimpleNamespace

import httpx
import pytest
from fastapi import FastAPI

from service.http import concurrency_limits


class WaitingApp:
    """An app whose requests wait until they are let go."""

    def __init__(self) -> None:
        self.app, self.inside, self.let_go = FastAPI(), {kind: 0 for kind in concurrency_limits.LIMITS}, asyncio.Event()
        self.app.state.motet = SimpleNamespace(semaphores=concurrency_limits.make())
        self.app.post("/submissions")(self.submit)
        self.app.post("/reports")(self.report)
        self.app.post("/heartbeats")(self.beat)
        self.app.post("/estimates")(self.estimate)
        self.app.post("/hashings")(self.hash_upload)
        self.app.post("/imports")(self.find_source)
        self.app.post("/assemblies")(self.assemble)

    async def submit(self, limited: concurrency_limits.Submitting) -> None:
        await self.stay("submissions")

    async def report(self, limited: concurrency_limits.Reporting) -> None:
        await self.stay("reports")

    async def beat(self) -> None:
        async with self.app.state.motet.semaphores["heartbeats"]:  # as its route does, which has no dependencies
            await self.stay("heartbeats")

    async def estimate(self, limited: concurrency_limits.Estimating) -> None:
        await self.stay("estimates")

    async def hash_upload(self, limited: concurrency_limits.Hashing) -> None:
        await self.stay("hashings")

    async def find_source(self, limited: concurrency_limits.Importing) -> None:
        await self.stay("imports")

    async def assemble(self, limited: concurrency_limits.Assembling) -> None:
        await self.stay("assemblies")

    async def stay(self, kind: str) -> None:
        self.inside[kind] += 1
        assert self.inside[kind] <= concurrency_limits.LIMITS[kind]
        await self.let_go.wait()
        self.inside[kind] -= 1
        raise ValueError("fails, and frees its semaphore")


def test_as_many_compute_as_the_limits_allow() -> None:
    async def many() -> None:
        waiting = WaitingApp()
        transport = httpx.ASGITransport(waiting.app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://waiting") as client:
            asked = [asyncio.ensure_future(client.post(f"/{kind}")) for kind in concurrency_limits.LIMITS for _ in range(7)]
            while waiting.inside != concurrency_limits.LIMITS:
                await asyncio.wait(asked, timeout=0.01, return_when=asyncio.FIRST_COMPLETED)
            waiting.let_go.set()
            assert {answer.status_code for answer in await asyncio.gather(*asked)} == {500}
            assert not any(waiting.inside.values())

    asyncio.run(asyncio.wait_for(many(), 60))


@pytest.mark.parametrize(
    ("path", "method"),
    [("/v1/tasks/estimate", "post"), ("/internal/v1/placements/{placement_id}/reports", "post")],
)
def test_what_computes_much_waits_for_a_semaphore(client, path, method) -> None:
    (route,) = [one for one in client.app.routes if getattr(one, "path", "") == path and method.upper() in one.methods]
    found = [*route.dependant.dependencies, *(inner for one in route.dependant.dependencies for inner in one.dependencies)]
    assert any("_limited." in getattr(one.call, "__qualname__", "") for one in found)


@pytest.mark.parametrize("said", ["application/json", "application/json; charset=utf-8"])
def test_a_submission_takes_its_semaphore_whichever_way_it_goes(client, tenant, monkeypatch, said) -> None:
    seat, taken = client.app.state.motet.semaphores["submissions"], []
    give_back = seat.release
    monkeypatch.setattr(seat, "release", lambda: taken.append(seat.locked()) or give_back())
    assert tenant.post("/v1/tasks", json=tenant.spec("file_none"), headers={"content-type": said}).status_code == 422
    assert taken == [True]


@pytest.mark.parametrize("trusted", [True, False])
def test_a_heartbeat_takes_its_semaphore(client, monkeypatch, trusted):
    seat, taken = client.app.state.motet.semaphores["heartbeats"], []
    acquire = seat.acquire
    monkeypatch.setattr(seat, "acquire", lambda: taken.append(True) or acquire())
    if trusted:  # else its gate looks the bearer up, as of all nodes once the API has started
        client.app.state.motet.throttle.trust("nc_good_lately")
    bearer = "nc_good_lately" if trusted else "nc_of_nobody_known"
    sent = {"json": {"boot_id": "b", "applied_version": 0}, "headers": {"authorization": f"Bearer {bearer}"}}
    assert client.post("/internal/v1/nodes/node_none/heartbeats", **sent).status_code == 401
    assert taken == [True]
