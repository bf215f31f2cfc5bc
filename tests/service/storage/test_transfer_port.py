"""The transfer port beside an API over a folder: what links open, what is refused, and what tenants are redirected to."""

import os
import socket
from urllib.parse import urlsplit

import httpx
import pytest
from sqlalchemy import update

from service.database.engine import Database
from service.storage.connect import storage_of
from service.storage.local_storage import LocalStorage
from service.tasks.models import Task
from tests.service.adapters.test_adapters import FILES, unpack
from tests.service.api import PAIR, jsonl
from tests.service.live_server import PATIENCE, until
from tests.service.sample_tasks import adapter, jobs_of
from tests.service.storage.test_contract import LARGE, OTHER, SMALL, later, put, sha_of
from tests.service.storage.transfer_server import HERE, by_a_port, transferring


@pytest.fixture(scope="module")
def settings(settings_for, database_url, tmp_path_factory, free_port):
    return settings_for(database_url, tmp_path_factory.mktemp("service"), **by_a_port(free_port()))


@pytest.fixture(scope="module", autouse=True)
def _transfers(settings):
    with transferring(settings):
        yield


@pytest.fixture
def transfers(settings):
    with httpx.Client(base_url=f"http://127.0.0.1:{settings.transfer_port}", timeout=PATIENCE) as made:
        yield made


@pytest.fixture(scope="module")
def storage(settings, database_url) -> LocalStorage:
    return storage_of(settings, Database(database_url, pool_size=1))


def link(storage: LocalStorage, data: bytes, filename: str = "rows.jsonl") -> str:
    return storage.presign(put(storage, data), filename, "application/jsonl", HERE)


def refusal(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["code"]


def test_a_download_names_its_file_and_its_digest(storage, transfers):
    answer = transfers.get(link(storage, SMALL, "Zürich.jsonl"))
    assert (answer.status_code, answer.content) == (200, SMALL)
    assert answer.headers["etag"] == f'"{sha_of(SMALL)}"'
    assert answer.headers["content-type"] == "application/jsonl"
    assert answer.headers["content-disposition"] == "attachment; filename*=UTF-8''Z%C3%BCrich.jsonl"
    assert answer.headers["content-digest"].startswith("sha-256=:")
    assert "no-cache" in answer.headers["cache-control"]


@pytest.mark.parametrize(
    ("asked", "status", "first", "last"),
    [
        ({}, 200, 0, 9),
        ({"Range": "bytes=2-4"}, 206, 2, 4),
        ({"Range": "bytes=7-"}, 206, 7, 9),
        ({"Range": "bytes=-3"}, 206, 7, 9),
        ({"Range": "bytes=2-4", "If-Range": f'"{sha_of(SMALL)}"'}, 206, 2, 4),
        ({"Range": "bytes=2-4", "If-Range": '"another"'}, 200, 0, 9),
    ],
)
def test_a_range_or_the_headers_alone_may_be_asked_for(storage, transfers, asked, status, first, last):
    url = link(storage, SMALL)
    got, head = transfers.get(url, headers=asked), transfers.head(url, headers=asked)
    assert (got.status_code, got.content) == (status, SMALL[first : last + 1])
    assert got.headers.get("content-range") == (f"bytes {first}-{last}/10" if status == 206 else None)
    assert ("content-digest" in got.headers) == (status == 200)
    assert (head.status_code, head.content) == (status, b"")
    kept = ("content-length", "content-range", "etag", "content-disposition")
    assert [head.headers.get(name) for name in kept] == [got.headers.get(name) for name in kept]


def test_what_a_link_does_not_open_is_refused(storage, transfers, monkeypatch):
    url = link(storage, SMALL)
    outside = transfers.get(url, headers={"Range": "bytes=10-"})
    assert (refusal(outside), outside.headers["content-range"]) == ((416, "range_outside"), "bytes */10")
    below = url.rpartition("/")[0]
    for forged in (url[:-1], url.replace("/objects/", "/objects/A"), f"{below}/x", f"{below}/..%5c..%5cetc%5cpasswd"):
        assert refusal(transfers.get(forged)) == (403, "link_refused")
    assert refusal(transfers.get(f"{below}/..%2f..%2fetc%2fpasswd")) == (404, "route_unknown")
    assert refusal(transfers.put(url, content=SMALL)) == (405, "method_not_allowed")
    for path in ("/v1/files", "/internal/v1/nodes", "/metrics", "/readyz", "/openapi.json", "/docs"):
        assert refusal(transfers.get(path)) == (404, "route_unknown"), "the port serves transfers alone"
    assert transfers.get("/livez").json() == {"status": "ok"}
    storage.delete(sha_of(SMALL))
    assert refusal(transfers.get(url)) == (404, "object_gone")
    later(monkeypatch, 301)
    assert refusal(transfers.get(url)) == (403, "link_refused")


def test_an_upload_is_verified_as_it_is_written(storage, transfers):
    grant = storage.grant_upload(sha_of(LARGE), len(LARGE), direct=HERE)
    assert (grant.exists, grant.parts, grant.complete, grant.headers) == (False, [], None, {})
    assert urlsplit(grant.url).port == transfers.base_url.port
    for wrong in (OTHER, LARGE[:-1], b""):
        assert refusal(transfers.put(grant.url, content=wrong)) == (422, "invalid")
    assert not storage.exists(sha_of(LARGE))
    for _ in range(2):  # the answer to the first one may have been lost
        assert transfers.put(grant.url, content=LARGE).status_code == 204
    with storage.open(sha_of(LARGE)) as source:
        assert source.read() == LARGE
    assert storage.grant_upload(sha_of(LARGE), len(LARGE), direct=HERE).exists
    assert not list((storage.path(sha_of(LARGE)).parents[2] / "incoming").iterdir())


def test_an_upload_that_is_longer_than_granted_or_not_granted_is_refused(storage, transfers, monkeypatch):
    grant = storage.grant_upload(sha_of(b"granted"), 7, direct=HERE)
    assert refusal(transfers.put(grant.url, content=b"granted and more")) == (413, "too_large")
    assert refusal(transfers.put(grant.url, content=iter([b"granted", b" and more"]))) == (413, "too_large")
    assert refusal(transfers.put(grant.url.replace(".7.", ".700."), content=b"granted")) == (403, "grant_refused")
    assert refusal(transfers.get(grant.url)) == (405, "method_not_allowed")
    later(monkeypatch, 3700)
    assert refusal(transfers.put(grant.url, content=b"granted")) == (403, "grant_refused")
    assert not storage.exists(sha_of(b"granted"))


def test_an_upload_that_is_cut_leaves_nothing(storage, transfers):
    grant = storage.grant_upload(sha_of(b"cut" * 10), 30, direct=HERE)
    where, incoming = urlsplit(grant.url), storage.path("0" * 64).parents[2] / "incoming"
    with socket.create_connection((where.hostname, where.port)) as connection:
        connection.sendall(f"PUT {where.path} HTTP/1.1\r\nHost: x\r\nContent-Length: 30\r\n\r\ncut".encode())
        until(lambda: list(incoming.iterdir()) != [])
    until(lambda: list(incoming.iterdir()) == [])
    assert not storage.exists(sha_of(b"cut" * 10))


def test_a_full_disk_is_said_and_an_archive_then_comes_from_the_api(settings_for, database_url, free_port, small_disk):
    settings = settings_for(database_url, small_disk.folder, **by_a_port(free_port()))
    full = storage_of(settings, Database(database_url, pool_size=1))
    grant = full.grant_upload(sha_of(SMALL * 10_000), 100_000, direct=HERE)
    small_disk.fill()
    with transferring(settings):
        assert refusal(httpx.put(grant.url, content=SMALL * 10_000, timeout=PATIENCE)) == (507, "storage_full")
        assert full.presign_derived("e/a.tar.gz", "application/gzip", lambda: [bytes(100_000)], HERE) is None
        small_disk.free()
        assert httpx.put(grant.url, content=SMALL * 10_000, timeout=PATIENCE).status_code == 204
    assert list((small_disk.folder / "storage" / "incoming").iterdir()) == []


def test_tenants_are_redirected_to_what_is_theirs(http, transfers, new_tenant):
    file = http.post("/v1/files", files={"file": ("train.jsonl", jsonl(PAIR))}).json()
    answer = http.get(f"/v1/files/{file['id']}/content")
    assert (answer.status_code, answer.content) == (307, b"")
    assert answer.headers["cache-control"] == "private, no-store"
    location = answer.headers["location"]
    assert (urlsplit(location).hostname, urlsplit(location).port) == ("127.0.0.1", transfers.base_url.port)
    assert http.headers["authorization"].split()[1] not in location
    got = transfers.get(location)
    assert (got.content, got.headers["content-disposition"]) == (jsonl(PAIR), "attachment; filename*=UTF-8''train.jsonl")
    unchanged = http.get(f"/v1/files/{file['id']}/content", headers={"If-None-Match": got.headers["etag"]})
    assert unchanged.status_code == 304
    assert new_tenant().get(f"/v1/files/{file['id']}/content", follow_redirects=False).status_code == 404
    by_name = http.get(f"/v1/files/{file['id']}/content", headers={"Host": "motet.example:8321"}).headers["location"]
    assert urlsplit(by_name).netloc == urlsplit(location).netloc, "who asks does not say where the link leads"


def test_an_adapter_comes_by_file_and_as_an_archive_that_is_made_once(http, tenant, transfers, database, storage, monkeypatch):
    own = FILES | {"adapter_model.safetensors": os.urandom(3_000_001)}
    task_id = tenant.task()["id"]
    with database.begin() as session:
        job = jobs_of(session, task_id)[0]
        adapter_id = adapter(session, storage, job, own).id
        session.execute(update(Task).where(Task.id == task_id).values(status="succeeded", winner_job_id=job.id))
    for path, content in own.items():
        if path != "README.md":  # which the service writes
            assert transfers.get(http.get(f"/v1/adapters/{adapter_id}/files/{path}").headers["location"]).content == content
    derived = storage.path("0" * 64).parents[2] / "derived"
    tags, before = set(), set(derived.glob("*"))
    for path in (f"adapters/{adapter_id}/archive", f"tasks/{task_id}/adapter"):
        answer = http.get(f"/v1/{path}")
        assert answer.status_code == 307
        got = transfers.get(answer.headers["location"])
        assert unpack(got.content).items() >= {f"{adapter_id}/{name}": content for name, content in own.items()}.items()
        assert got.headers["content-disposition"] == f"attachment; filename*=UTF-8''{adapter_id}.tar.gz"
        assert got.headers["content-type"] == "application/gzip"
        assert http.get(f"/v1/{path}", headers={"If-None-Match": got.headers["etag"]}).status_code == 304
        part = transfers.get(answer.headers["location"], headers={"Range": "bytes=100-199"})
        assert (part.status_code, part.content) == (206, got.content[100:200])
        tags.add(got.headers["etag"])
    assert (len(tags), len(set(derived.iterdir()) - before)) == (1, 1)
    later(monkeypatch, 3700)
    storage.sweep_incoming()
    monkeypatch.undo()
    assert (list(derived.iterdir()), refusal(transfers.get(answer.headers["location"]))) == ([], (404, "object_gone"))


def test_an_archive_is_there_whole_or_not_at_all(storage):
    def broken():
        yield b"half"
        raise OSError("the disk broke")

    with pytest.raises(OSError, match="the disk broke"):
        storage.presign_derived("broken/a.tar.gz", "application/gzip", broken, HERE)
    folder = storage.path("0" * 64).parents[2]
    made = storage.presign_derived("broken/a.tar.gz", "application/gzip", lambda: [b"whole"], HERE)
    assert httpx.get(made, timeout=PATIENCE).content == b"whole"
    assert list((folder / "incoming").iterdir()) == []


@pytest.mark.parametrize("offload", [None, "x-sendfile"])
def test_tenants_are_not_sent_to_a_port_whose_address_for_them_is_not_told(
    serve, settings_for, new_database_url, tmp_path, free_port, offload
):
    """A proxy or a tunnel may not have it. Who sends files for workers there may have a proxy send tenants'."""
    caller = serve(settings_for(new_database_url, tmp_path, transfer_port=free_port(), download_offload=offload))
    file = caller.upload(jsonl(PAIR)).json()
    answer = caller.get(f"/v1/files/{file['id']}/content", follow_redirects=False)
    assert (answer.status_code, answer.content) == (200, b"" if offload else jsonl(PAIR))
    assert ("x-sendfile" in answer.headers) == (offload is not None)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"port": 9000, "transfer_port": 9000}, "MOTET_TRANSFER_PORT must be another than MOTET_PORT"),
        ({"internal_port": 9000, "transfer_port": 9000}, "MOTET_TRANSFER_PORT must be another than MOTET_INTERNAL_PORT"),
        ({"storage_url": "s3://bucket", "transfer_port": 9000}, "MOTET_TRANSFER_PORT is for files of this machine"),
        ({"transfer_url": "https://files.example"}, "MOTET_TRANSFER_URL is the address of MOTET_TRANSFER_PORT"),
        (
            {"download_offload": "x-sendfile", "transfer_port": 9000, "transfer_url": "https://files.example"},
            "exclude each other",
        ),
        ({"transfer_port": 0}, "transfer_port"),
    ],
)
def test_settings_that_do_not_agree_are_named(settings_for, database_url, tmp_path, changes, says):
    with pytest.raises(ValueError, match=says):
        settings_for(database_url, tmp_path, **changes)
