"""A fake node that trains nothing: a daemon's side of the real fleet API over real HTTP and Redis, with a timer as executor.

For each task it reports what a worker would: acknowledged, attached, trained, adapter stored, completed. Measures nothing.
"""

import hashlib
import queue
import secrets
import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from contract.messages.adapter_manifest import AdapterFile, AdapterManifest, Lineage
from contract.messages.node_messages import Device, Heartbeat, NodeRegistration, Pulse
from contract.messages.placement_messages import JobAssignment, Placement
from contract.messages.report_messages import (
    AdapterKept,
    Attached,
    JobCompleted,
    JobMoved,
    Points,
    Report,
    ReportEvent,
    Throughput,
)
from contract.messages.upload_messages import UploadRequest
from contract.states import JobStatus
from worker.api_client import NodeLink, PlacementLink
from worker.node.desired_state_poller import Desired, DesiredStates, NodeForgotten
from worker.node.wakeup_listener import WakeupListener

TOKENS = 500  # per job
_GIB = 2**30
_FILES = {"adapter_config.json": b"{}", "adapter_model.safetensors": b"nothing was trained"}


class FakeNode:
    """`seconds` is each placement's duration; `taken` is called with a task's id when this node has received the task. With
    `held`, placements report that duration but end only when `finish_next` is called, oldest first."""

    def __init__(
        self,
        api_url: str,
        redis_url: str,
        join_token: str,
        name: str,
        slots: int,
        seconds: float,
        taken: Callable[[str], None],
        held: bool = False,
    ) -> None:
        self._seconds, self._taken, self._holds, self._due = seconds, taken, held, 0
        self._link, self._placement_link = NodeLink(api_url), PlacementLink(api_url)
        devices = [Device(index=at, type="cpu", memory_bytes=8 * _GIB) for at in range(slots)]
        self._boot_id = secrets.token_hex(8)
        said = NodeRegistration(name=name, boot_id=self._boot_id, devices=devices)
        self.welcome = self._link.register(join_token, said)
        self._held: dict[str, Placement] = {}
        self._over: set[str] = set()
        self._inbox: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._desired = DesiredStates(self._link, self.welcome, lambda news: self._inbox.put(partial(self._heed, news)))
        self._hints = WakeupListener(redis_url, self.welcome.stream, self._desired.poll_soon)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def finish_next(self) -> None:
        """End the oldest held placement, as soon as there is one."""
        self._inbox.put(partial(self._finish_due, 1))

    def close(self) -> None:
        self._hints.close()
        self._desired.close()
        self._inbox.put(None)
        self._thread.join()
        self._link.close()
        self._placement_link.close()

    def _run(self) -> None:
        beat_at = 0.0
        while True:
            try:
                act = self._inbox.get(timeout=max(0.0, beat_at - time.monotonic()))
                if act is None:
                    return
                act()
            except queue.Empty:
                self._beat()
                beat_at = time.monotonic() + self.welcome.heartbeat_seconds

    def _beat(self) -> None:
        pulses = [
            Pulse(placement_id=key, fence=held.fence, phase="training", progress_age=0.0) for key, held in self._held.items()
        ]
        said = Heartbeat(boot_id=self._boot_id, pulses=pulses)
        self._link.heartbeat(self.welcome.node_id, self.welcome.credential, said)

    def _heed(self, news: Desired | NodeForgotten) -> None:
        if isinstance(news, NodeForgotten):
            raise RuntimeError("the service forgot a node that beats")
        wanted = {placement.placement_id: placement for placement in news.state.placements}
        new = [key for key in wanted if key not in self._held and key not in self._over]
        for key in new:
            self._taken(wanted[key].task_id)
            self._held[key] = wanted[key]
        if new:
            self._beat()
        for key in () if self._holds else new:
            threading.Timer(self._seconds, self._inbox.put, [partial(self._finish, wanted[key])]).start()
        self._finish_due(0)

    def _finish_due(self, more: int) -> None:
        self._due += more
        while self._due and self._held:
            self._due -= 1
            self._finish(next(iter(self._held.values())))

    def _finish(self, placement: Placement) -> None:
        jobs = [job.index for job in placement.jobs]
        started: list[ReportEvent] = [
            Attached(
                train_rows=18, validation_rows=2, truncated_rows=0, skipped_rows=0,
                total_steps=dict.fromkeys(jobs, 5), warmup_steps=dict.fromkeys(jobs, 5),
            )
        ]  # fmt: skip
        for job in jobs:
            started.append(JobMoved(job=job, status=JobStatus.WARMUP, step=0))
            started.append(JobMoved(job=job, status=JobStatus.TRAINING, step=0))
            started.append(Points(job=job, series="train_loss", steps=[1, 2, 3, 4, 5], values=[2.0, 1.8, 1.6, 1.5, 1.4]))
            started.append(Points(job=job, series="val_loss", steps=[5], values=[1.5]))
        tokens = TOKENS * len(jobs)
        started.append(Throughput(steps=5, tokens=tokens, seconds=self._seconds, micro_batches=5, forwards=5))
        ended: list[ReportEvent] = []
        for job in placement.jobs:
            ended.append(AdapterKept(job=job.index, manifest=self._manifest(placement, job)))
            ended.append(JobCompleted(job=job.index, step=5, best_step=5, best_val_loss=1.5))
        self._over.add(placement.placement_id)
        del self._held[placement.placement_id]
        report = Report(fence=placement.fence, seq=1, events=[*started, *ended])
        self._placement_link.report(placement.placement_id, placement.token, report)

    def _manifest(self, placement: Placement, job: JobAssignment) -> AdapterManifest:
        files = [self._upload(placement, path, content) for path, content in _FILES.items()]
        lineage = Lineage(
            task_id=placement.task_id, job_id=job.job_id, base_model=placement.base.name,
            base_revision=placement.base.revision, dataset_sha256=placement.train_file.sha256, config=job.config,
        )  # fmt: skip
        return AdapterManifest(files=files, step=5, val_loss=1.5, lineage=lineage)

    def _upload(self, placement: Placement, path: str, content: bytes) -> AdapterFile:
        sha256 = hashlib.sha256(content).hexdigest()
        request = UploadRequest(fence=placement.fence, sha256=sha256, bytes=len(content))
        grant = self._placement_link.grant(placement.placement_id, placement.token, request)
        if not grant.exists:
            with tempfile.NamedTemporaryFile() as file:
                file.write(content)
                file.flush()
                self._placement_link.put(grant, Path(file.name))
        return AdapterFile(path=path, sha256=sha256, bytes=len(content))
