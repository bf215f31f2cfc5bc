"""A fleet API for tests: real HTTP, in memory, as strict about reports as the service. It lets outages be played."""

import hashlib
import itertools
import json
import re
import threading
from collections import defaultdict
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

from contract.messages.cached_file_list import CachedFiles
from contract.messages.node_messages import (
    Heartbeat,
    HeartbeatAnswer,
    LeaseGrant,
    NodeRegistration,
    NodeWelcome,
    PlacementsLost,
)
from contract.messages.placement_messages import BaseModelRef, FileRef, JobAssignment, Placement
from contract.messages.report_messages import (
    AdapterKept,
    Checkpointed,
    Detached,
    Event,
    JobCompleted,
    JobExited,
    JobFailed,
    JobMoved,
    Points,
    Report,
    ReportAck,
)
from contract.messages.upload_messages import UploadGrant, UploadRequest
from contract.states import JOB_TERMINAL, JobStatus, check_job
from contract.task_spec import TaskSpec
from tests.worker.corpus import jsonl, rows

JOIN_TOKEN = "join-" + "x" * 32


class Reported:
    """What one placement reported, checked event by event."""

    def __init__(self, placement: Placement) -> None:
        self.placement = placement
        self.last_seq = placement.next_seq - 1
        self.live = True
        self.events: list[Event] = []
        self.status = {job.index: job.status for job in placement.jobs}
        self.step = {job.index: job.checkpoint.step if job.checkpoint else 0 for job in placement.jobs}
        self.curves: dict[tuple[int, str], dict[int, float | None]] = defaultdict(dict)
        self.checkpoints = {job.index: job.checkpoint for job in placement.jobs if job.checkpoint}
        self.manifests: dict[int, Any] = {}
        self.promoted = {job.index for job in placement.jobs if job.promoted}
        self.warmup_losses = {job.index: job.warmup_val_loss for job in placement.jobs if job.warmup_val_loss is not None}

    def of(self, kind: type) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]

    @property
    def ended(self) -> dict[int, Any]:
        """The event that ended each job."""
        return {e.job: e for e in self.events if isinstance(e, JobCompleted | JobExited | JobFailed)}

    def apply(self, event: Event, objects: dict[str, bytes]) -> None:
        job = getattr(event, "job", None)
        if job is not None and self.status[job] in JOB_TERMINAL:
            raise ValueError(f"job {job} is {self.status[job]}, and now: {event}")
        match event:
            case Points():
                curve = self.curves[job, event.series]
                assert event.steps[0] > max([*curve, self.first_step(job)]), f"{event} after step {max(curve, default=None)}"
                curve.update(zip(event.steps, event.values, strict=True))
                self.step[job] = max(self.step[job], event.steps[-1])
            case JobMoved():
                self.status[job] = check_job(self.status[job], event.status)
                if event.warmup_val_loss is not None:
                    self.warmup_losses[job] = event.warmup_val_loss
                if event.status == JobStatus.TRAINING:
                    self.promoted.add(job)
            case Checkpointed():
                for index, ref in event.jobs.items():
                    assert self.status[index] not in (JobStatus.PENDING, *JOB_TERMINAL), self.status[index]
                    assert len(objects[ref.sha256]) == ref.bytes
                    assert ref.step <= self.step[index]
                    self.checkpoints[index] = ref
            case AdapterKept():
                assert all(len(objects[file.sha256]) == file.bytes for file in event.manifest.files)
                self.manifests[job] = event.manifest
            case JobCompleted():
                self.status[job] = check_job(self.status[job], JobStatus.COMPLETED)
            case JobExited():
                self.status[job] = check_job(self.status[job], JobStatus.EXITED)
            case JobFailed():
                self.status[job] = check_job(self.status[job], JobStatus.FAILED)
        self.events.append(event)

    def first_step(self, job: int) -> int:
        ref = next(j for j in self.placement.jobs if j.index == job).checkpoint
        return ref.step if ref else 0


class Fleet:
    """Nodes, placements, files and objects. `down` answers 503 to everything; `on_report` sees every applied report."""

    def __init__(self, heartbeat_seconds: float = 0.2, lease_seconds: float = 900.0) -> None:
        self.heartbeat_seconds, self.lease_seconds = heartbeat_seconds, lease_seconds
        self.lock = threading.Condition()
        self.files: dict[str, bytes] = {}
        self.objects: dict[str, bytes] = {}
        self.reported: dict[str, Reported] = {}
        self.desired: list[Placement] = []
        self.newer: list[dict[str, Any]] = []  # placements as only a newer worker reads them
        self.unchanged = False  # whether the service can describe no placement
        self.version = 0
        self.registrations: list[NodeRegistration] = []
        self.credential = ""
        self.joins_left = 1000  # times that the join token works
        self.heartbeats: list[Heartbeat] = []
        self.lost: list[PlacementsLost] = []
        self.refused: list[str] = []
        self.requests: list[tuple[str, str, int]] = []
        self.down = False
        self.welcomes: dict[str, Any] = {}  # what a welcome says besides
        self.strange: dict[str, dict[str, Any]] = {}  # fields of a newer service in the specs of these placements
        self.deleted: set[str] = set()  # sha256 of files
        self.on_report: Callable[[Reported, Report], None] = lambda reported, report: None
        fleet = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _serve(self) -> None:
                size = int(self.headers.get("Content-Length") or 0)
                body = self.rfile.read(size) if size else self._chunked()
                status, answer = fleet.answer(self.command, self.path, self.headers.get("Authorization", ""), body)
                fleet.requests.append((self.command, self.path, status))
                self.send_response(status)
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def _chunked(self) -> bytes:
                if self.headers.get("Transfer-Encoding") != "chunked":
                    return b""
                body = b""
                while length := int(self.rfile.readline(), 16):
                    body += self.rfile.read(length)
                    self.rfile.readline()
                self.rfile.readline()
                return body

            do_GET = do_POST = do_PUT = _serve

            def log_message(self, *_: object) -> None:
                return

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    # ---- what tests do ---------------------------------------------------------------------------------------------

    def add_file(self, file_id: str, content: bytes) -> FileRef:
        self.files[file_id] = content
        return FileRef(file_id=file_id, sha256=hashlib.sha256(content).hexdigest(), rows=content.count(b"\n"))

    def place(self, placement: Placement) -> Reported:
        with self.lock:
            self.desired = [*self.desired, placement]
            self.version += 1
            self.reported[placement.placement_id] = reported = Reported(placement)
            return reported

    def end(self, placement_id: str) -> None:
        with self.lock:
            self.desired = [p for p in self.desired if p.placement_id != placement_id]
            self.reported[placement_id].live = False
            self.version += 1

    def ask_to_leave(self, placement_id: str) -> None:
        with self.lock:
            self.desired = [p.model_copy(update={"leave": p.leave or p.placement_id == placement_id}) for p in self.desired]
            self.version += 1

    def until(self, holds: Callable[[], Any], seconds: float = 120.0) -> Any:
        """Wait until `holds()`, asked after every request."""
        with self.lock:
            assert self.lock.wait_for(holds, timeout=seconds), "it did not come to that"
            return holds()

    # ---- what workers ask ------------------------------------------------------------------------------------------

    def answer(self, method: str, path: str, bearer: str, body: bytes) -> tuple[int, bytes]:
        with self.lock:
            try:
                if self.down:
                    return 503, b""
                for pattern, act in self._routes.items():
                    wanted, _, form = pattern.partition(" ")
                    found = re.fullmatch(form, path)
                    if wanted == method and found:
                        return act(self, bearer.removeprefix("Bearer "), body, *found.groups())
                return 404, b"{}"
            except (AssertionError, ValueError, KeyError) as error:
                self.refused.append(f"{method} {path}: {error!r}")
                return 422, json.dumps({"code": "report_refused", "detail": repr(error)}).encode()
            finally:
                self.lock.notify_all()

    def _register(self, bearer: str, body: bytes) -> tuple[int, bytes]:
        if not (bearer == self.credential or (bearer == JOIN_TOKEN and self.joins_left)):
            return 401, b'{"code": "join_refused", "detail": "the join token is wrong"}'
        self.joins_left -= bearer == JOIN_TOKEN
        self.registrations.append(NodeRegistration.model_validate_json(body))
        self.credential = self.registrations[-1].credential or f"credential-{len(self.registrations)}"
        for placement in self.desired:
            self.reported[placement.placement_id].live = False
        self.desired = []
        self.version += 1
        welcome = NodeWelcome(
            node_id="node_1",
            credential=self.credential,
            stream="motet:node:node_1",
            heartbeat_seconds=self.heartbeat_seconds,
            lease_seconds=self.lease_seconds,
        )
        return 201, welcome.model_copy(update=self.welcomes).model_dump_json().encode()

    def _heartbeat(self, bearer: str, body: bytes) -> tuple[int, bytes]:
        if bearer != self.credential:
            return 401, b'{"code": "node_unknown"}'
        said = Heartbeat.model_validate_json(body)
        self.heartbeats.append(said)
        live = {p.placement_id: p for p in self.desired}
        leases = [
            LeaseGrant(placement_id=p.placement_id, fence=p.fence, seconds=self.lease_seconds, token=f"token-{p.placement_id}")
            for p in said.pulses
            if p.placement_id in live
        ]
        return 200, HeartbeatAnswer(leases=leases, desired_version=self.version).model_dump_json().encode()

    def _desired(self, bearer: str, body: bytes) -> tuple[int, bytes]:
        if bearer != self.credential:
            return 401, b'{"code": "node_unknown"}'
        said: dict[str, Any] = {"version": self.version, "placements": [], "unchanged": []}
        if self.unchanged:
            said["unchanged"] = [{"placement_id": p.placement_id, "leave": p.leave} for p in self.desired]
        else:
            said["placements"] = [*self.newer, *(p.model_dump(mode="json") for p in self.desired)]
            for placement in said["placements"]:
                placement["spec"].update(self.strange.get(placement["placement_id"], {}))
        return 200, json.dumps(said).encode()

    def _cached(self, bearer: str, body: bytes) -> tuple[int, bytes]:
        kept = CachedFiles.model_validate_json(body)
        gone = CachedFiles(files=[file for file in kept.files if file.sha256 in self.deleted])
        return 200, gone.model_dump_json().encode()

    def _lost(self, bearer: str, body: bytes) -> tuple[int, bytes]:
        said = PlacementsLost.model_validate_json(body)
        self.lost.append(said)
        self.desired = [p for p in self.desired if p.placement_id not in said.fences]
        for placement_id in said.fences:
            if placement_id in self.reported:  # else it never was: a newer service's
                self.reported[placement_id].live = False
        self.newer = [p for p in self.newer if p["placement_id"] not in said.fences]
        self.version += 1
        return 204, b""

    def _report(self, bearer: str, body: bytes, placement_id: str) -> tuple[int, bytes]:
        reported, report = self.reported[placement_id], Report.model_validate_json(body)
        if bearer != f"token-{placement_id}":
            return 401, b'{"code": "placement_token_refused"}'
        if not reported.live or report.fence != reported.placement.fence:
            return 409, b'{"code": "fence_stale"}'
        if report.seq > reported.last_seq + 1:
            return 409, json.dumps({"code": "seq_gap", "expected_seq": reported.last_seq + 1}).encode()
        if report.seq == reported.last_seq + 1:
            for event in report.events:
                reported.apply(event, self.objects)
            reported.last_seq = report.seq
            if all(status in JOB_TERMINAL for status in reported.status.values()) or reported.of(Detached):
                self.desired = [p for p in self.desired if p.placement_id != placement_id]
                self.version += 1
            self.on_report(reported, report)
        return 200, ReportAck(seq=reported.last_seq).model_dump_json().encode()

    def _file(self, bearer: str, body: bytes, placement_id: str, file_id: str) -> tuple[int, bytes]:
        return 200, self.files[file_id]

    def _object(self, bearer: str, body: bytes, placement_id: str, sha256: str) -> tuple[int, bytes]:
        return 200, self.objects[sha256]

    def _grant(self, bearer: str, body: bytes, placement_id: str) -> tuple[int, bytes]:
        request = UploadRequest.model_validate_json(body)
        if not self.reported[placement_id].live:
            return 409, b'{"code": "fence_stale"}'
        exists = request.sha256 in self.objects
        url = None if exists else f"/internal/v1/objects/{request.sha256}.{request.bytes}"
        return 200, UploadGrant(exists=exists, url=url).model_dump_json().encode()

    def _put(self, bearer: str, body: bytes, sha256: str, size: str) -> tuple[int, bytes]:
        assert hashlib.sha256(body).hexdigest() == sha256
        assert len(body) == int(size)
        self.objects[sha256] = body
        return 204, b""

    _routes: ClassVar[dict[str, Callable[..., tuple[int, bytes]]]] = {
        r"POST /internal/v1/nodes": _register,
        r"POST /internal/v1/nodes/node_1/heartbeats": _heartbeat,
        r"GET /internal/v1/nodes/node_1/desired": _desired,
        r"POST /internal/v1/nodes/node_1/lost": _lost,
        r"POST /internal/v1/nodes/node_1/cached-files": _cached,
        r"POST /internal/v1/placements/(\w+)/reports": _report,
        r"GET /internal/v1/placements/(\w+)/files/(\w+)": _file,
        r"GET /internal/v1/placements/(\w+)/objects/(\w+)": _object,
        r"POST /internal/v1/placements/(\w+)/uploads": _grant,
        r"PUT /internal/v1/objects/(\w+)\.(\d+)": _put,
    }


def placer(fleet: Fleet, base: BaseModelRef) -> Callable[..., Placement]:
    """Makes placements of tasks: `(space, rows, **more of the spec)`. Their files are on the fleet at once."""
    numbers = itertools.count(1)

    def place(space: dict[str, Any], data: list[dict[str, Any]] | None = None, **spec: Any) -> Placement:
        number = next(numbers)
        file = fleet.add_file(f"file_{number}", jsonl(data if data is not None else rows(40)))
        dataset = {"file_id": file.file_id, **spec.pop("dataset", {})}
        made = TaskSpec.model_validate({"base_model": "tiny", "dataset": dataset, "search_space": space, **spec})
        key = f"p{number}"
        return Placement(
            placement_id=key,
            fence=1,
            token=f"token-{key}",
            lease_seconds=fleet.lease_seconds,
            task_id=f"task_{number}",
            device_indexes=[0],
            base=base.model_copy(update={"precision": made.precision}),
            train_file=file,
            validation_file=None,
            spec=made,
            jobs=[
                JobAssignment(job_id=f"job_{number}_{index}", index=index, config=config, status=JobStatus.PENDING)
                for index, config in enumerate(made.jobs())
            ],
        )

    return place
