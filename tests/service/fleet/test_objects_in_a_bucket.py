"""A worker's uploads and downloads over a bucket: by presigned URLs, verified by the service, and only what is its own."""

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from motet import Client

from contract.compatibility.capabilities import understood
from contract.messages.upload_messages import FOLLOWS_REDIRECTS, UploadGrant, UploadRequest
from tests.hub.hub_process import MODEL
from tests.service.fleet.fixtures import join_token
from tests.service.fleet.scripted import ScriptedNode
from tests.service.fleet.test_objects import grant, put
from tests.service.live_server import PATIENCE
from tests.service.storage.conftest import credentials, moto  # noqa: F401  (fixtures)
from tests.service.storage.object_servers import CREDENTIALS
from worker.api_client import PlacementLink, Refused
from worker.data.base_download import BaseDownloads
from worker.data.storage_source import StorageSource

CONTENT = os.urandom(2**20) * 12


@pytest.fixture(scope="module")
def settings(settings_for, database_url, tmp_path_factory, moto):  # noqa: F811
    with pytest.MonkeyPatch.context() as patch:
        for name, value in CREDENTIALS.items():
            patch.setenv(name, value)
        yield settings_for(database_url, tmp_path_factory.mktemp("service"), **moto.settings(prefix="fleet"))


@pytest.fixture
def placement(tenant, plan, database, server):
    client = httpx.Client(base_url=server.url, timeout=PATIENCE)
    node = ScriptedNode(client, join_token(database, "over-a-bucket"), "over-a-bucket").register()
    task = tenant.task()
    plan()
    return node.take(task["id"])


@pytest.fixture
def link(server) -> PlacementLink:
    return PlacementLink(server.url)


@pytest.fixture
def upload(link, placement, tmp_path) -> Callable[[bytes, bytes], UploadGrant]:
    """Put bytes under the grant of others (or of themselves)."""

    def make(announced: bytes, sent: bytes) -> UploadGrant:
        path: Path = tmp_path / "object"
        path.write_bytes(sent)
        fence, sha256 = placement.given.fence, hashlib.sha256(announced).hexdigest()
        asked = UploadRequest(fence=fence, sha256=sha256, bytes=len(announced), direct=True)
        granted = link.grant(placement.given.placement_id, placement.given.token, asked)
        if not granted.exists:
            link.put(granted, path)
        return granted

    return make


@pytest.mark.parametrize("part_bytes", [2**30, 8 * 2**20], ids=["whole", "in parts"])
def test_a_worker_puts_to_the_bucket_and_the_service_verifies(upload, storage, monkeypatch, part_bytes):
    monkeypatch.setattr("service.storage.bucket_storage.PART_BYTES", part_bytes)
    content = CONTENT + str(part_bytes).encode()
    granted = upload(content, content)
    assert (granted.url, len(granted.parts)) == (None, -(-len(content) // part_bytes))
    assert all("X-Amz-Signature" in part.url for part in granted.parts)
    with storage.open(hashlib.sha256(content).hexdigest()) as source:
        assert source.read() == content
    assert upload(content, content).exists


def test_bytes_that_are_not_those_announced_are_refused(upload, storage):
    with pytest.raises(Refused) as refused:
        upload(b"these bytes", b"other bytes")
    assert (refused.value.status, refused.value.body["errors"][0]["code"]) == (422, "object_mismatch")
    assert not storage.exists(hashlib.sha256(b"these bytes").hexdigest())


def test_completing_needs_a_live_placement_and_its_token(placement, storage):
    said = UploadRequest(fence=placement.given.fence, sha256="a" * 64, bytes=5, direct=True)
    granted = placement.call("POST", "uploads", said.model_dump()).json()
    complete = placement.node.client.post
    assert complete(granted["complete"]).status_code == 401
    assert complete(granted["complete"].replace(".5.", ".6."), headers=granted["headers"]).status_code == 403
    assert complete(granted["complete"], headers=granted["headers"]).status_code == 422, "nothing was put"
    placement.node.lost(placement)
    assert complete(granted["complete"], headers=granted["headers"]).json()["code"] == "fence_stale"


def test_a_worker_of_an_earlier_version_sends_and_fetches_through_the_service(placement, storage):
    content = b"from an older worker"
    assert put(placement, grant(placement, content), content) == (204, None)
    assert storage.exists(hashlib.sha256(content).hexdigest())
    fetched = placement.call("GET", f"files/{placement.given.train_file.file_id}")
    assert hashlib.sha256(fetched.content).hexdigest() == placement.given.train_file.sha256


def test_a_worker_fetches_an_uploaded_base_from_the_bucket_and_resumes(admin, plan, database, server, link, tmp_path):
    with Client(server.url, admin.key, admin_key=admin.key) as client:
        assert client.admin.upload_model(MODEL, "in-the-bucket").storage.status == "stored"
    token = join_token(database, "base-in-a-bucket")
    said = {"capabilities": sorted(understood())}
    node = ScriptedNode(httpx.Client(base_url=server.url, timeout=PATIENCE), token, "base-in-a-bucket", said=said).register()
    task = admin.task(base_model="in-the-bucket")
    plan()
    given = node.take(task["id"]).given
    (file,) = [file for file in given.base.files if file.path == "model.safetensors"]
    path = f"/internal/v1/placements/{given.placement_id}/objects/{file.sha256}"
    headers = {"Authorization": f"Bearer {given.token}", FOLLOWS_REDIRECTS: "1"}
    assert node.client.get(path, headers=headers).status_code == 307
    content, partial = (MODEL / file.path).read_bytes(), tmp_path / file.path
    assert b"".join(link.base_file(given.placement_id, given.token, file.sha256, 1000)) == content[1000:]
    partial.write_bytes(content[:1000])
    source = StorageSource(link, given.placement_id, lambda: given.token)
    BaseDownloads(source).fetch(file, partial, lambda size: None)
    assert partial.read_bytes() == content


def test_a_worker_fetches_its_data_set_from_the_bucket(placement, link):
    file, given = placement.given.train_file, placement.given
    fetched = b"".join(link.file(given.placement_id, given.token, file.file_id))
    assert hashlib.sha256(fetched).hexdigest() == file.sha256
    path = f"/internal/v1/placements/{given.placement_id}/files/{file.file_id}"
    headers = {"Authorization": f"Bearer {given.token}", FOLLOWS_REDIRECTS: "1"}
    answer = placement.node.client.get(path, headers=headers)
    assert (answer.status_code, answer.content) == (307, b"")
    assert given.token not in answer.headers["location"]
