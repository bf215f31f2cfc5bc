"""A node and its placements as the service sees them: real HTTP requests in the wire's words, and a script for the training."""

import hashlib
import json
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from contract.messages.adapter_manifest import AdapterFile, AdapterManifest, Lineage
from contract.messages.node_messages import HeartbeatAnswer, NodeWelcome
from contract.messages.placement_messages import DesiredState, Placement
from contract.messages.report_messages import ReportAck
from contract.messages.upload_messages import UploadGrant

GIB = 2**30


def devices(count: int, memory: int = 8 * GIB, kind: str = "cpu") -> list[dict[str, Any]]:
    return [{"index": at, "type": kind, "memory_bytes": memory} for at in range(count)]


@dataclass
class ScriptedNode:
    """A daemon's side of the protocol. `client` is anything with httpx's calls."""

    client: Any
    join_token: str
    name: str
    slots: int = 1
    memory: int = 8 * GIB
    versions: dict[str, str] = field(default_factory=dict)
    boot_id: str = field(default_factory=lambda: secrets.token_hex(8))
    welcome: NodeWelcome | None = None

    said: dict[str, Any] = field(default_factory=dict)  # what it registers with besides

    def try_to_register(self) -> Any:
        """One registration, by the join token or, once it has joined, by its credential; whatever comes of it."""
        return self.ask_to_join(self.welcome.credential if self.welcome is not None else self.join_token)

    def register(self) -> "ScriptedNode":
        """By the join token, and once it has joined by its credential."""
        response = self.try_to_register()
        assert response.status_code == 201, response.text
        self.welcome = NodeWelcome.model_validate(response.json())
        return self

    def ask_to_join(self, bearer: str, **more: Any) -> Any:
        """One registration, whatever comes of it."""
        said = {
            "name": self.name,
            "boot_id": self.boot_id,
            "devices": devices(self.slots, self.memory),
            "versions": self.versions,
        }
        return self.call("POST", "nodes", bearer, said | self.said | more)

    def reboot(self) -> "ScriptedNode":
        self.boot_id = secrets.token_hex(8)
        return self.register()

    @property
    def id(self) -> str:
        assert self.welcome is not None
        return self.welcome.node_id

    @property
    def credential(self) -> str:
        assert self.welcome is not None
        return self.welcome.credential

    def call(self, method: str, path: str, bearer: str, said: Any = None) -> Any:
        headers = {"Authorization": f"Bearer {bearer}", "Content-Type": "application/json"}
        body = None if said is None else json.dumps(said)
        return self.client.request(method, f"/internal/v1/{path}", headers=headers, content=body)

    def beat(self, *pulses: dict[str, Any], **more: Any) -> Any:
        said = {"boot_id": self.boot_id, "pulses": list(pulses)} | more
        return self.call("POST", f"nodes/{self.id}/heartbeats", self.credential, said)

    def leases(self, *pulses: dict[str, Any]) -> HeartbeatAnswer:
        response = self.beat(*pulses)
        assert response.status_code == 200, response.text
        return HeartbeatAnswer.model_validate(response.json())

    def desired(self) -> DesiredState:
        response = self.call("GET", f"nodes/{self.id}/desired", self.credential)
        assert response.status_code == 200, response.text
        return DesiredState.model_validate(response.json())

    def lost(self, *placements: "ScriptedPlacement", reason: str = "executor_lost", detail: str = "killed", **more: Any) -> Any:
        said = {"reason": reason, "fences": {one.id: one.given.fence for one in placements}, "detail": detail} | more
        return self.call("POST", f"nodes/{self.id}/lost", self.credential, said)

    def take(self, task_id: str) -> "ScriptedPlacement":
        """The placement of this task, which must be among what the node should run."""
        given = {placement.task_id: placement for placement in self.desired().placements}
        return ScriptedPlacement(self, given[task_id], given[task_id].next_seq)


@dataclass
class ScriptedPlacement:
    """An executor's side of one placement: numbers its reports, uploads, fetches."""

    node: ScriptedNode
    given: Placement
    seq: int = 1

    @property
    def id(self) -> str:
        return self.given.placement_id

    def call(self, method: str, path: str, said: Any = None) -> Any:
        return self.node.call(method, f"placements/{self.id}/{path}", self.given.token, said)

    def pulse(self, phase: str = "training", age: float = 0.0, **more: Any) -> dict[str, Any]:
        return {"placement_id": self.id, "fence": self.given.fence, "phase": phase, "progress_age": age} | more

    def body(self, *events: dict[str, Any], seq: int | None = None, fence: int | None = None) -> dict[str, Any]:
        fence = self.given.fence if fence is None else fence
        return {"fence": fence, "seq": seq or self.seq, "events": list(events)}

    def send(self, *events: dict[str, Any], **how: Any) -> Any:
        """One report, whatever comes of it."""
        return self.call("POST", "reports", self.body(*events, **how))

    def report(self, *events: dict[str, Any]) -> ReportAck:
        """One report, which must be accepted."""
        response = self.send(*events)
        assert response.status_code == 200, response.text
        self.seq += 1
        return ReportAck.model_validate(response.json())

    def upload(self, content: bytes) -> str:
        """Put an object where the service says; its sha256."""
        sha256 = hashlib.sha256(content).hexdigest()
        said = {"fence": self.given.fence, "sha256": sha256, "bytes": len(content)}
        response = self.call("POST", "uploads", said)
        assert response.status_code == 200, response.text
        grant = UploadGrant.model_validate(response.json())
        if not grant.exists:
            put = self.node.client.put(grant.url, headers=grant.headers, content=content)
            assert put.status_code == 204, put.text
        return sha256

    def attached(self, steps: int = 20, warmup: int = 2) -> dict[str, Any]:
        jobs = [job.index for job in self.given.jobs]
        return {
            "kind": "attached",
            "train_rows": 18,
            "validation_rows": 2,
            "truncated_rows": 0,
            "skipped_rows": 0,
            "total_steps": dict.fromkeys(jobs, steps),
            "warmup_steps": dict.fromkeys(jobs, warmup),
        }

    def adapter(self, job: int, loss: float, step: int = 20) -> dict[str, Any]:
        """Upload a small adapter; the event that keeps it."""
        given = next(one for one in self.given.jobs if one.index == job)
        files = []
        for path in ("adapter_config.json", "adapter_model.safetensors"):
            content = f"{given.job_id} {path} {step}".encode()
            files.append(AdapterFile(path=path, sha256=self.upload(content), bytes=len(content)))
        lineage = Lineage(
            task_id=self.given.task_id,
            job_id=given.job_id,
            base_model=self.given.base.name,
            base_revision=self.given.base.revision,
            dataset_sha256=self.given.train_file.sha256,
            config=given.config,
        )
        manifest = AdapterManifest(files=files, step=step, val_loss=loss, lineage=lineage)
        return {"kind": "adapter_kept", "job": job, "manifest": manifest.model_dump(mode="json")}

    def checkpoint(self, steps: dict[int, int]) -> dict[str, Any]:
        """Upload a checkpoint for each job; the event that commits them."""
        jobs = {}
        for job, step in steps.items():
            content = f"checkpoint of {self.given.jobs[job].job_id} at {step}".encode()
            jobs[str(job)] = {"step": step, "sha256": self.upload(content), "bytes": len(content)}
        return {"kind": "checkpointed", "jobs": jobs}


def moved(job: int, status: str, step: int = 0, **more: Any) -> dict[str, Any]:
    return {"kind": "job_moved", "job": job, "status": status, "step": step} | more


def points(
    job: int, steps: Sequence[int], values: Sequence[float | None] | None = None, series: str = "train_loss"
) -> dict[str, Any]:
    values = [2.0 - step / 100 for step in steps] if values is None else list(values)
    return {"kind": "points", "job": job, "series": series, "steps": list(steps), "values": values}


def completed(job: int, step: int = 20, best_step: int | None = 20, loss: float | None = 1.0) -> dict[str, Any]:
    return {"kind": "job_completed", "job": job, "step": step, "best_step": best_step, "best_val_loss": loss}


def exited(job: int, step: int, reason: str = "underperforming", loss: float | None = 1.5) -> dict[str, Any]:
    event = {"kind": "job_exited", "job": job, "step": step, "reason": reason, "evidence": {"rank": 3, "kept": 1}}
    return event | {"best_step": step, "best_val_loss": loss}


def throughput(steps: int = 10, tokens: int = 1000, seconds: float = 2.0, **more: Any) -> dict[str, Any]:
    done = {"kind": "throughput", "steps": steps, "tokens": tokens, "seconds": seconds}
    return done | {"micro_batches": steps, "forwards": steps} | more
