"""What many tenants do at once, each under a key of its own: polls, long polls, and submissions under Idempotency-Keys.

Open loop: requests are due at fixed moments, whatever the service does, and latencies count from then; a request that finds no
free connection waits, and its wait counts. Knows nothing of the server.
"""

import asyncio
import json
import random
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from benchmarks.load_http_client import Connection

TENANTS, POLLS_PER_SECOND, SUBMISSIONS_PER_SECOND = 200, 300, 20
LONG_POLLERS, WAIT_SECONDS = 50, 5  # tenants that also keep a long poll open
REPEATED = 10  # every tenth submission is sent twice under its key
_AT_ONCE = 8  # tenants that are made at a time


@dataclass(frozen=True)
class Caller:
    """A tenant: its key, a task to poll, and the spec that it submits."""

    key: str
    task_id: str
    spec: bytes


@dataclass
class TenantLoad:
    """Measurements: milliseconds from when a request was due, and what was acknowledged."""

    url: str
    callers: list[Caller]
    polls: list[float] = field(default_factory=list)
    submits: list[float] = field(default_factory=list)
    long_polls: list[float] = field(default_factory=list)  # beyond the seconds asked for, where nothing changed
    made: dict[str, set[str]] = field(default_factory=dict)  # task ids answered, by Idempotency-Key
    wrong: list[str] = field(default_factory=list)
    polls_per_second: float = POLLS_PER_SECOND
    submissions_per_second: float = SUBMISSIONS_PER_SECOND
    long_pollers: int = LONG_POLLERS

    async def run(self, seconds: float) -> None:
        """All tenants' requests for so many seconds."""
        connections = [Connection(self.url, caller.key) for caller in self.callers]
        locks = [asyncio.Lock() for _ in connections]
        for number, caller in enumerate(self.callers):  # connect before anything is timed
            await connections[number].request("GET", f"/v1/tasks/{caller.task_id}")
        submitters = [Connection(self.url, caller.key) for caller in self.callers]
        taken = [asyncio.Lock() for _ in submitters]

        async def poll(number: int, due: float) -> None:
            at = number % len(self.callers)
            async with locks[at]:
                answer = await connections[at].request("GET", f"/v1/tasks/{self.callers[at].task_id}")
            self.polls.append((time.monotonic() - due) * 1000)
            if answer.status != 200:
                self.wrong.append(f"poll: {answer.status}")

        async def submit(number: int, due: float) -> None:
            at, key = (number * 7) % len(self.callers), f"storm-{number}"
            async with taken[at]:
                for _ in range(2 if number % REPEATED == 0 else 1):
                    await self._submit(submitters[at], self.callers[at], key)
                    self.submits.append((time.monotonic() - due) * 1000)
                    due = time.monotonic()

        over = time.monotonic() + seconds
        await asyncio.gather(
            _due(poll, self.polls_per_second, seconds, 0),
            _due(submit, self.submissions_per_second, seconds, 1),
            *(self._long_poll(caller, over) for caller in self.callers[: self.long_pollers]),
        )
        for connection in (*connections, *submitters):
            await connection.__aexit__()

    async def _submit(self, connection: Connection, caller: Caller, key: str) -> None:
        answer = await connection.request("POST", "/v1/tasks", caller.spec, f"Idempotency-Key: {key}\r\n")
        if answer.status == 201:
            self.made.setdefault(key, set()).add(json.loads(answer.body)["id"])
        else:
            self.wrong.append(f"submit: {answer.status} {answer.body[:200]!r}")

    async def _long_poll(self, caller: Caller, over: float) -> None:
        async with Connection(self.url, caller.key) as connection:
            while (began := time.monotonic()) < over:
                answer = await connection.request("GET", f"/v1/tasks/{caller.task_id}?wait={WAIT_SECONDS}")
                late = time.monotonic() - began - WAIT_SECONDS
                if answer.status != 200:
                    self.wrong.append(f"long poll: {answer.status}")
                elif late >= 0:  # an earlier answer brought news
                    self.long_polls.append(late * 1000)


async def _due(act: Callable[[int, float], Coroutine[Any, Any, None]], rate: float, seconds: float, seed: int) -> None:
    """Start `act(number, due)` at the moments of a Poisson process, without waiting for the one before."""
    draw, begun, number = random.Random(seed), list[asyncio.Task[None]](), 0
    due = time.monotonic()
    until = due + seconds
    while (due := due + draw.expovariate(rate)) < until:
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        begun.append(asyncio.ensure_future(act(number, due)))
        number += 1
    await asyncio.gather(*begun)


def callers_of(http: httpx.Client, admin_key: str, rows: Path, base_model: str) -> list[Caller]:
    """TENANTS new tenants, each with a key, a file and a task."""
    admin, content = {"Authorization": f"Bearer {admin_key}"}, rows.read_bytes()

    def made(number: int) -> Caller:
        tenant = http.post("/v1/admin/tenants", json={"name": f"load {number}"}, headers=admin).json()["id"]
        key = http.post(f"/v1/admin/tenants/{tenant}/keys", json={}, headers=admin).json()["secret"]
        own = {"Authorization": f"Bearer {key}"}
        file_id = http.post("/v1/files", files={"file": ("rows.jsonl", content)}, headers=own).json()["id"]
        space = {"learning_rate": [1e-4, 2e-4], "batch_size": [4]}
        spec = {"base_model": base_model, "dataset": {"file_id": file_id}, "search_space": space}
        answer = http.post("/v1/tasks", json=spec, headers=own)
        assert answer.status_code == 201, answer.text
        return Caller(key, answer.json()["id"], json.dumps(spec).encode())

    with ThreadPoolExecutor(_AT_ONCE) as threads:
        return list(threads.map(made, range(TENANTS)))


def lost(load: TenantLoad, http: httpx.Client) -> int:
    """Submissions that were acknowledged and are not there, or stand there more than once."""
    listed: dict[str, int] = {}
    for caller in load.callers:
        cursor: str | None = None
        while True:
            query = {"limit": 100} | ({"cursor": cursor} if cursor else {})
            page = http.get("/v1/tasks", params=query, headers={"Authorization": f"Bearer {caller.key}"}).json()
            for task in page["data"]:
                listed[task["id"]] = listed.get(task["id"], 0) + 1
            cursor = page["next_cursor"]
            if cursor is None:
                break
    answered = {id for ids in load.made.values() for id in ids}
    twice = sum(len(ids) - 1 for ids in load.made.values())
    return twice + len(answered - set(listed)) + len(set(listed) - answered - {caller.task_id for caller in load.callers})
