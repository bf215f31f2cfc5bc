"""The worker's HTTP client where another thread closes it: requests fail as if nobody answered, and end with their leases."""

from pathlib import Path

import pytest

from contract.messages.upload_messages import UploadGrant, UploadRequest
from tests.worker.fleet import Fleet
from worker.api_client import PlacementLink, Unreachable
from worker.boot_clock import boot_now
from worker.executor.placement_lease import Lease, LeaseNotHeld
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
