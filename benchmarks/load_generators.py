"""Load generators for the API: pollers, submitters, event streams and a reporting worker, as coroutines of one process.

Latencies count from the time a request was due, not from when it was sent. All clients connect, and every poller sends one
request, before measurement starts: 250 simultaneous connections are a load of their own. Knows nothing of the server.
"""

import asyncio
import json
import time
from dataclasses import dataclass, field
from typing import Any

from benchmarks.load_http_client import Connection

POLLERS, POLLS_PER_SECOND, STREAMS, SUBMISSIONS, SUBMITTERS = 200, 300, 50, 500, 8
REPORT_SECONDS, POINTS_PER_SECOND, SERIES = 0.5, 20_000, 100  # one worker's report interval, rate, and number of jobs
EACH = int(POINTS_PER_SECOND * REPORT_SECONDS / SERIES)  # points per job in one report


@dataclass(frozen=True)
class Placed:
    """A placement that reports: its task, token, fence, and the next report's number."""

    placement_id: str
    task_id: str
    token: str
    fence: int


@dataclass
class Load:
    """Measurements: latencies in milliseconds, and counts."""

    url: str
    key: str
    polls: dict[str, list[float]] = field(default_factory=lambda: {"plain": [], "if-none-match": []})
    submits: list[float] = field(default_factory=list)
    reports: list[float] = field(default_factory=list)
    points: int = 0  # acknowledged
    seq: int = 1
    step: int = 1
    wrong: list[str] = field(default_factory=list)
    streams: list[list[int]] = field(default_factory=lambda: [[] for _ in range(STREAMS)])
    over: bool = False
    polled: list[float] = field(default_factory=list)  # answer time of each poll, seconds of the monotonic clock
    ready: asyncio.Barrier = field(default_factory=lambda: asyncio.Barrier(POLLERS + SUBMITTERS + 1))

    @property
    def polls_per_second(self) -> float:
        """Answer rate between the first and the last poll."""
        return (len(self.polled) - 1) / (max(self.polled) - min(self.polled))

    async def poll(self, number: int, task_id: str, seconds: float) -> None:
        """One poller; every second poller sends its last ETag."""
        kind = "plain" if number % 2 else "if-none-match"
        every = POLLERS / POLLS_PER_SECOND
        async with Connection(self.url, self.key) as connection:
            etag = (await connection.request("GET", f"/v1/tasks/{task_id}")).headers.get("etag", "")
            await self.ready.wait()
            due = time.monotonic() + every * number / POLLERS
            until = due + seconds
            while due < until:
                await asyncio.sleep(max(0.0, due - time.monotonic()))
                headers = f"If-None-Match: {etag}\r\n" if etag and kind != "plain" else ""
                answer = await connection.request("GET", f"/v1/tasks/{task_id}", headers=headers)
                self.polled.append(time.monotonic())
                self.polls[kind].append((self.polled[-1] - due) * 1000)
                if answer.status not in (200, 304):
                    self.wrong.append(f"poll: {answer.status}")
                etag, due = answer.headers.get("etag", ""), due + every

    async def submit(self, spec: bytes, waiting: list[int]) -> None:
        """One of the storm's submitters, with one request in flight, until no submission is left."""
        async with Connection(self.url, self.key) as connection:
            await connection.request("GET", "/livez")
            await self.ready.wait()
            while waiting:
                waiting.pop()
                began = time.monotonic()
                answer = await connection.request("POST", "/v1/tasks", spec)
                self.submits.append((time.monotonic() - began) * 1000)
                if answer.status != 201:
                    self.wrong.append(f"submit: {answer.status} {answer.body[:200]!r}")

    async def follow(self, number: int, task_id: str) -> None:
        """One reader of a task's events; reconnects with its last event number until `over`."""
        seen = self.streams[number]
        while not self.over:
            try:
                async with Connection(self.url, self.key) as connection:
                    async for event in connection.events(f"/v1/tasks/{task_id}/events", seen[-1] if seen else 0):
                        seen.append(event)
                        if self.over:
                            return
            except OSError:
                await asyncio.sleep(0.2)  # polled: the API restarts, and no event tells when it is back

    def bodies(self, placed: Placed, count: int) -> list[bytes]:
        """The next `count` reports, built in advance: a real worker builds them on another machine, and doing it here would
        block this process's event loop and delay its latency measurements."""
        reports = [
            {"fence": placed.fence, "seq": self.seq + number, "events": _points(self.step + number * EACH)}
            for number in range(count)
        ]
        return [json.dumps(report).encode() for report in reports]

    async def report_with_all(self, placed: Placed, bodies: list[bytes]) -> float:
        """As `report`, but starts once all clients are ready."""
        await self.ready.wait()
        return await self.report(placed, bodies)

    async def report(self, placed: Placed, bodies: list[bytes]) -> float:
        """A worker that sends these reports, one per REPORT_SECONDS, at once if it is late; returns the seconds taken."""
        async with Connection(self.url, placed.token) as connection:
            began = time.monotonic()
            for number, body in enumerate(bodies):
                due = began + number * REPORT_SECONDS
                await asyncio.sleep(max(0.0, due - time.monotonic()))
                answer = await connection.request("POST", f"/internal/v1/placements/{placed.placement_id}/reports", body)
                self.reports.append((time.monotonic() - due) * 1000)
                if answer.status != 200:
                    self.wrong.append(f"report: {answer.status} {answer.body[:200]!r}")
                    break
                self.seq, self.step, self.points = self.seq + 1, self.step + EACH, self.points + EACH * SERIES
        return max(time.monotonic() - began, len(bodies) * REPORT_SECONDS)


def _points(first: int) -> list[dict[str, Any]]:
    steps = list(range(first, first + EACH))
    values = [1.0 + 1.0 / step + (step * 7919 % 1000) / 9973 for step in steps]
    return [{"kind": "points", "job": job, "series": "train_loss", "steps": steps, "values": values} for job in range(SERIES)]


def quantile(values: list[float], share: float) -> float:
    """The smallest value that `share` of the values do not exceed."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def spread(values: list[float]) -> dict[str, float]:
    """Milliseconds at quantiles 0.5, 0.95, 0.99 and 1, and the number of values."""
    shares = {"p50_ms": 0.5, "p95_ms": 0.95, "p99_ms": 0.99, "most_ms": 1.0}
    return {"count": len(values)} | {name: round(quantile(values, share), 2) for name, share in shares.items()}
