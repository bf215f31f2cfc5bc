"""Things that only workers bring about, put straight into the database: points, placements, stored adapters, changes."""

import hashlib
import io
from datetime import datetime
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from service.adapters.models import Adapter
from service.database.engine import Database, new_id
from service.fleet.models import Node, Placement
from service.hub_pushes.models import HubPush
from service.storage.object_store import Storage
from service.tasks.lifecycle.change_notices import bump_version_and_notify
from service.tasks.models import Job, PointChunk, Task
from service.usage.usage_ledger import book


def change(database: Database, *task_ids: str) -> None:
    """Something about these tasks that a poller can see."""
    with database.begin() as session:
        bump_version_and_notify(session, *(session.get_one(Task, task_id) for task_id in task_ids))


def jobs_of(session: Session, task_id: str) -> list[Job]:
    return list(session.scalars(select(Job).where(Job.task_id == task_id).order_by(Job.index)))


def chunk(session: Session, job: Job, series: str, steps: list[int], values: list[float], hidden_by: int | None = None) -> None:
    """A chunk of a curve."""
    session.add(
        PointChunk(
            job_id=job.id,
            series=series,
            first_step=steps[0],
            last_step=steps[-1],
            steps=steps,
            values=values,
            hidden_by=hidden_by,
        )
    )


def placement(
    session: Session,
    task_id: str,
    tokens: int,
    gpu_seconds: float = 2.0,
    devices: int = 1,
    at: datetime | None = None,
    ended: bool = True,
    evaluation_tokens: int = 0,
    train_seconds: float = 0.0,
) -> str:
    """A placement of the task on a node of its own, with what it did, booked as a report would have; its id."""
    name, has = new_id("n"), [{"index": index, "type": "cpu", "memory_bytes": 1} for index in range(devices)]
    node = Node(id=new_id("node"), name=name, boot_id="b", status="ready", devices=has, versions={}, credential_hash=b"")
    session.add(node)
    session.flush()
    now = session.scalars(select(func.clock_timestamp())).one()
    made = Placement(
        id=new_id("placement"),
        task_id=task_id,
        node_id=node.id,
        device_indexes=list(range(devices)),
        fence=1,
        created_at=at or now,
        lease_until=now,
        ended_at=now if ended else None,
        tokens=tokens,
        train_seconds=train_seconds,
        evaluation_tokens=evaluation_tokens,
        gpu_seconds=gpu_seconds,
    )
    session.add(made)
    book(session, session.get_one(Task, task_id), made, tokens, evaluation_tokens, gpu_seconds)
    return made.id


def adapter(session: Session, storage: Storage, job: Job, files: dict[str, bytes], val_loss: float = 1.0) -> Adapter:
    """A committed adapter of the job, with these files in storage."""
    task = session.get_one(Task, job.task_id)
    listed: list[dict[str, Any]] = []
    for path, content in files.items():
        sha256 = hashlib.sha256(content).hexdigest()
        storage.put(io.BytesIO(content), sha256, len(content))
        listed.append({"path": path, "sha256": sha256, "bytes": len(content)})
    lineage = {
        "task_id": task.id,
        "job_id": job.id,
        "base_model": task.base_model,
        "base_revision": task.base_revision,
        "dataset_sha256": "d" * 64,
        "config": job.config,
    }
    made = Adapter(
        id=new_id("adapter"),
        tenant_id=task.tenant_id,
        task_id=task.id,
        job_id=job.id,
        step=7,
        val_loss=val_loss,
        bytes=sum(map(len, files.values())),
        manifest={"files": listed, "step": 7, "val_loss": val_loss, "lineage": lineage},
    )
    session.add(made)
    session.flush()
    return made


def hub_push(session: Session, tenant_id: str) -> HubPush:
    """A push that waits, of an adapter that nobody has."""
    made = HubPush(
        id=new_id("push"),
        tenant_id=tenant_id,
        adapter_id="adapter_x",
        endpoint="https://hub.example",
        repository="org/name",
        revision="main",
        private=True,
        message="Upload",
        files=[],
        bytes=0,
        status="open",
        sealed=b"",
    )
    session.add(made)
    session.flush()
    return made
