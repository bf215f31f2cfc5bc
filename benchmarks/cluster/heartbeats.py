"""Nodes that heartbeat and train nothing, as coroutines of one process: each renews the leases of what it was given.

Latencies count from when a heartbeat was due. Knows no tables.
"""

import asyncio
import json
import secrets
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import httpx

from benchmarks.load_http_client import Connection

_AT_ONCE = 8
_GIB = 2**30


@dataclass
class BeatingNode:
    """A registered node and what it holds."""

    id: str
    boot_id: str
    connection: Connection
    seconds: float  # between two heartbeats
    version: int = -1  # of the desired state that it has read
    held: dict[str, int] = field(default_factory=dict)  # fence by placement


@dataclass
class Fleet:
    """`beats`: milliseconds of each heartbeat. `wrong`: answers that were no 200."""

    nodes: list[BeatingNode]
    beats: list[float] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    @property
    def placements(self) -> int:
        return sum(len(node.held) for node in self.nodes)

    async def run(self, over: asyncio.Event) -> None:
        """Heartbeats of all nodes, spread over their interval, until `over`."""
        began = time.monotonic()
        await asyncio.gather(
            *(self._beat(node, began + node.seconds * at / len(self.nodes), over) for at, node in enumerate(self.nodes))
        )

    async def _beat(self, node: BeatingNode, due: float, over: asyncio.Event) -> None:
        while not over.is_set():
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            pulses = [
                {"placement_id": id, "fence": fence, "phase": "training", "progress_age": 0.0}
                for id, fence in node.held.items()
            ]
            said = json.dumps(
                {"boot_id": node.boot_id, "pulses": pulses, "applied_version": max(node.version, 0), "applied_age": 0.0}
            )
            answer = await node.connection.request("POST", f"/internal/v1/nodes/{node.id}/heartbeats", said.encode())
            self.beats.append((time.monotonic() - due) * 1000)
            if answer.status != 200:
                self.wrong.append(f"heartbeat: {answer.status} {answer.body[:200]!r}")
            elif (version := json.loads(answer.body)["desired_version"]) != node.version:
                await self._read_desired(node, version)
            due += node.seconds

    async def _read_desired(self, node: BeatingNode, version: int) -> None:
        answer = await node.connection.request("GET", f"/internal/v1/nodes/{node.id}/desired")
        if answer.status != 200:
            self.wrong.append(f"desired: {answer.status} {answer.body[:200]!r}")
            return
        node.held = {one["placement_id"]: one["fence"] for one in json.loads(answer.body)["placements"]}
        node.version = version


def joined(http: httpx.Client, admin_key: str, count: int) -> Fleet:
    """So many nodes of one CPU slot each, registered with a join token each."""
    admin = {"Authorization": f"Bearer {admin_key}"}
    url = str(http.base_url)

    def join(number: int) -> BeatingNode:
        name, boot_id = f"node-{number:04}", secrets.token_hex(8)
        token = http.post("/v1/admin/join-tokens", json={"node_name": name}, headers=admin).json()["secret"]
        devices: list[dict[str, Any]] = [{"index": 0, "type": "cpu", "memory_bytes": 8 * _GIB}]
        said = {"name": name, "boot_id": boot_id, "devices": devices}
        answer = http.post("/internal/v1/nodes", json=said, headers={"Authorization": f"Bearer {token}"})
        assert answer.status_code == 201, answer.text
        welcome = answer.json()
        return BeatingNode(welcome["node_id"], boot_id, Connection(url, welcome["credential"]), welcome["heartbeat_seconds"])

    with ThreadPoolExecutor(_AT_ONCE) as threads:
        return Fleet(list(threads.map(join, range(count))))
