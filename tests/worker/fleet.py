"""A fleet API for tests: real HTTP, in memory, as strict about reports as the service. It lets outages be played."""

import hashlib
import json
import re
import threading
from collections.abc import Callable
from typing import Any, ClassVar

from contract.messages.cached_file_list import CachedFiles
from contract.messages.completion_messages import (
    CompletionPiece,
    CompletionPieces,
    CompletionsGiven,
    CompletionsWanted,
    CompletionWork,
    PiecesTaken,
)
from contract.messages.merge_messages import MergeReport
from contract.messages.node_messages import (
    Heartbeat,
    HeartbeatAnswer,
    LeaseGrant,
    NodeRegistration,
    NodeWelcome,
    PlacementsLost,
)
from contract.messages.placement_messages import AnswersOnly, FileRef, MergeWork, Placement
from contract.messages.report_messages import Detached, Report, ReportAck
from contract.messages.upload_messages import UploadGrant, UploadRequest
from contract.states import JOB_TERMINAL
from tests.worker.fleet_server import FleetServer
from tests.worker.reported import Reported

JOIN_TOKEN = "join-" + "x" * 32


class Fleet:
    """Nodes, placements, files and objects. `down` answers 503 to everything; `on_report` sees every applied report."""

    def __init__(self, heartbeat_seconds: float = 0.2, lease_seconds: float = 900.0) -> None:
        self.heartbeat_seconds, self.lease_seconds = heartbeat_seconds, lease_seconds
        self.lock = threading.Condition()
        self.files: dict[str, bytes] = {}
        self.objects: dict[str, bytes] = {}
        self.reported: dict[str, Reported] = {}
        self.desired: list[Placement] = []
        self.sessions: list[AnswersOnly] = []
        self.merges: list[MergeWork] = []
        self.merge_reports: list[MergeReport] = []
        self.away: set[str] = set()  # sha256 of objects that storage does not answer for
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
        self.asked: list[CompletionWork] = []  # completions that nobody has claimed
        self.pieces: dict[str, list[CompletionPiece]] = {}  # of claimed ones, by request
        self.gone: set[str] = set()  # completions that nobody waits for any more
        self.on_pieces: Callable[[], None] = lambda: None
        self.on_report: Callable[[Reported, Report], None] = lambda reported, report: None
        self._server = FleetServer(self.answer)
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

    def hold(self, session: AnswersOnly | None, *placements: Placement) -> list[Reported]:
        """Hold this base alone from now on, or none, and place these with the same change."""
        with self.lock:
            self.sessions, self.version = [session] if session is not None else [], self.version + 1
            return [self.place(placement) for placement in placements]

    def merge(self, work: MergeWork) -> None:
        with self.lock:
            self.merges, self.version = [*self.merges, work], self.version + 1

    def end(self, placement_id: str) -> None:
        with self.lock:
            self.desired = [p for p in self.desired if p.placement_id != placement_id]
            self.reported[placement_id].live, self.version = False, self.version + 1

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
                status, said = self._answer(method, path, bearer, body)
                self.requests.append((method, path, status))  # before anybody is woken, who may look for it
                return status, said
            finally:
                self.lock.notify_all()

    def _answer(self, method: str, path: str, bearer: str, body: bytes) -> tuple[int, bytes]:
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

    def _register(self, bearer: str, body: bytes) -> tuple[int, bytes]:
        if not (bearer == self.credential or (bearer == JOIN_TOKEN and self.joins_left)):
            return 401, b'{"code": "join_refused", "detail": "the join token is wrong"}'
        self.joins_left -= bearer == JOIN_TOKEN
        self.registrations.append(NodeRegistration.model_validate_json(body))
        self.credential = self.registrations[-1].credential or f"credential-{len(self.registrations)}"
        for placement in self.desired:
            self.reported[placement.placement_id].live = False
        self.desired, self.sessions, self.merges, self.version = [], [], [], self.version + 1
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
        live = {p.placement_id for p in [*self.desired, *self.sessions, *self.merges]}
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
        said["sessions"] = [session.model_dump(mode="json") for session in self.sessions]
        said["merges"] = [merge.model_dump(mode="json") for merge in self.merges]
        return 200, json.dumps(said).encode()

    def _cached(self, bearer: str, body: bytes) -> tuple[int, bytes]:
        kept = CachedFiles.model_validate_json(body)
        gone = CachedFiles(files=[file for file in kept.files if file.sha256 in self.deleted])
        return 200, gone.model_dump_json().encode()

    def _lost(self, bearer: str, body: bytes) -> tuple[int, bytes]:
        said = PlacementsLost.model_validate_json(body)
        self.lost.append(said)
        self.desired = [p for p in self.desired if p.placement_id not in said.fences]
        self.sessions = [p for p in self.sessions if p.placement_id not in said.fences]
        self.merges = [p for p in self.merges if p.placement_id not in said.fences]
        for placement_id in said.fences.keys() & self.reported.keys():  # the others never were: a newer service's
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
        return (503, b"") if sha256 in self.away else (200, self.objects[sha256])

    def _grant(self, bearer: str, body: bytes, placement_id: str) -> tuple[int, bytes]:
        request = UploadRequest.model_validate_json(body)
        if not self.reported[placement_id].live:
            return 409, b'{"code": "fence_stale"}'
        exists = request.sha256 in self.objects
        url = None if exists else f"/internal/v1/objects/{request.sha256}.{request.bytes}"
        return 200, UploadGrant(exists=exists, url=url).model_dump_json().encode()

    def _completions(self, bearer: str, body: bytes, placement_id: str) -> tuple[int, bytes]:
        said = CompletionsWanted.model_validate_json(body)
        self.lock.wait_for(lambda: self.asked or self.gone & set(said.held), timeout=min(0.2, said.wait))
        if placement_id not in {placement.placement_id for placement in [*self.desired, *self.sessions]}:
            return 409, b'{"code": "fence_stale"}'
        given, self.asked = self.asked[: said.room], self.asked[said.room :]
        self.pieces.update({work.request_id: [] for work in given})
        answer = CompletionsGiven(requests=given, gone=sorted(self.gone & set(said.held)))
        return 200, answer.model_dump_json().encode()

    def _pieces(self, bearer: str, body: bytes, placement_id: str) -> tuple[int, bytes]:
        said = CompletionPieces.model_validate_json(body)
        for piece in said.pieces:
            known = self.pieces[piece.request_id]
            assert piece.number > (known[-1].number if known else 0)
            assert not any(one.over for one in known)
            known.append(piece)
        self.on_pieces()
        gone = sorted(self.gone & {piece.request_id for piece in said.pieces})
        return 200, PiecesTaken(gone=gone).model_dump_json().encode()

    def _completion_object(self, bearer: str, body: bytes, _: str, request_id: str, sha256: str) -> tuple[int, bytes]:
        assert request_id in self.pieces
        return 200, self.objects[sha256]

    def _merge(self, bearer: str, body: bytes, placement_id: str) -> tuple[int, bytes]:
        self.merge_reports.append(MergeReport.model_validate_json(body))
        return 204, b""

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
        r"POST /internal/v1/placements/(\w+)/completions": _completions,
        r"POST /internal/v1/placements/(\w+)/completion-pieces": _pieces,
        r"GET /internal/v1/placements/(\w+)/completions/(\w+)/objects/(\w+)": _completion_object,
        r"POST /internal/v1/placements/(\w+)/uploads": _grant,
        r"POST /internal/v1/placements/(\w+)/merge": _merge,
        r"PUT /internal/v1/objects/(\w+)\.(\d+)": _put,
    }
