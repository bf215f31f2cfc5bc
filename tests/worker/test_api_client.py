"""The worker's HTTP client where another thread closes it: requests fail as if nobody answered, and end with their leases."""

import json
import threading
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from contract.messages.cached_file_list import CachedFiles
from contract.messages.upload_messages import UploadGrant, UploadRequest
from tests.http_server import HangUpServer, read_body
from tests.worker.fleet import Fleet
from worker.api_client import NodeLink, PlacementLink, Unreachable, Unreadable, _desired
from worker.boot_clock import boot_now
from worker.executor.placement.placement_lease import Lease, LeaseNotHeld
from worker.executor.retry import persist

SHA256 = "0" * 64


@pytest.fixture
def closed(fleet: Fleet) -> PlacementLink:
    link = PlacementLink(fleet.url)
    link.close()
    return link


def test_a_closed_link_reaches_nobody(closed: PlacementLink, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"content")
    with pytest.raises(Unreachable, match=r"POST placements/p1/uploads: the link is closed"):
        closed.grant("p1", "token", UploadRequest(fence=1, sha256=SHA256, bytes=7))
    with pytest.raises(Unreachable, match="PUT of file: the link is closed"):
        closed.put(UploadGrant(exists=False, url="/internal/v1/objects/x"), tmp_path / "file")
    with pytest.raises(Unreachable, match="GET placements/p1/files/file_1: the link is closed"):
        list(closed.file("p1", "token", "file_1"))


def test_a_session_that_cannot_be_read_blocks_no_other() -> None:
    base = {"name": "tiny", "source": "/bases/tiny", "revision": SHA256}
    lease = {"fence": 3, "token": "t", "lease_seconds": 1.0, "device_indexes": [0]}
    sessions = [
        {"placement_id": "strange", "base": base | {"precision": "int2"}, **lease},
        {"placement_id": "plain", "base": base, **lease},
    ]
    said: dict[str, object] = {"version": 1, "placements": []}
    state, unread = _desired(json.dumps(said | {"sessions": sessions}).encode())
    assert state.sessions is not None
    assert [one.placement_id for one in state.sessions] == ["plain"]
    assert [(one.placement_id, one.fence) for one in unread] == [("strange", 3)]
    assert "precision" in unread[0].why
    assert _desired(json.dumps(said).encode())[0].sessions is None, "a service from before sessions says nothing of them"


class _Page(BaseHTTPRequestHandler):
    """A proxy's page in place of the service's answer."""

    def do_POST(self) -> None:
        read_body(self)
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"<html>back soon</html>")

    def log_message(self, *_: object) -> None:
        pass


def test_a_page_in_place_of_an_answer_is_told_as_one_that_cannot_be_read() -> None:
    server = HangUpServer(("127.0.0.1", 0), _Page)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        with NodeLink(f"http://127.0.0.1:{server.server_port}") as link, pytest.raises(Unreadable, match="CachedFiles"):
            link.unwanted("node_1", "c", CachedFiles(files=[]))
    finally:
        server.shutdown()
        server.server_close()


def test_what_a_thread_sends_when_the_link_is_closed_ends_with_its_lease(closed: PlacementLink) -> None:
    lease = Lease("p1", 1, "token", boot_now() + 900)
    tries = 0

    def attempt() -> None:
        nonlocal tries
        tries += 1
        if tries == 2:
            lease.release()
        closed.grant("p1", lease.token, UploadRequest(fence=1, sha256=SHA256, bytes=7))

    with pytest.raises(LeaseNotHeld):
        persist(lease, "an upload", attempt)
    assert tries == 2
