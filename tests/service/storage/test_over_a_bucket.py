"""The API over a bucket: tenants are redirected to what is theirs, the collector works by pages, trouble is said in words."""

import hashlib
import os
import subprocess
import sys
import time
from datetime import timedelta

import httpx
import pytest
from sqlalchemy import update

from service.background import garbage_collection
from service.background.garbage_collection import sweep
from service.background.retention import Retention
from service.storage.object_store import StorageAway, StorageRefused
from service.tasks.models import Task
from tests.service.adapters.test_adapters import FILES, unpack, won
from tests.service.api import PAIR, jsonl
from tests.service.live_server import PATIENCE
from tests.service.sample_tasks import adapter, jobs_of
from tests.service.storage.object_servers import CREDENTIALS, object_server
from tests.service.storage.test_contract import put, sha_of

__all__ = ["won"]
LARGE = jsonl(*(PAIR | {"prompt": os.urandom(2**19).hex()} for _ in range(12)))  # several parts


@pytest.fixture(scope="module")
def settings(settings_for, database_url, tmp_path_factory, moto):
    with pytest.MonkeyPatch.context() as patch:
        for name, value in CREDENTIALS.items():
            patch.setenv(name, value)
        yield settings_for(database_url, tmp_path_factory.mktemp("service"), **moto.settings(prefix="over"))


def presigned(answer) -> bytes:
    assert answer.status_code == 307, answer.text
    assert answer.headers["cache-control"] == "private, no-store"
    return httpx.get(answer.headers["location"], timeout=PATIENCE).content


@pytest.mark.parametrize("content", [jsonl(PAIR), LARGE], ids=["small", "large"])
def test_a_file_is_kept_and_its_tenant_is_redirected_to_it(tenant, new_tenant, content):
    file = tenant.upload(content).json()
    assert file["sha256"] == sha_of(content)
    answer = tenant.get(f"/v1/files/{file['id']}/content", follow_redirects=False)
    assert presigned(answer) == content
    assert file["sha256"] in answer.headers["location"]
    told = tenant.request("HEAD", f"/v1/files/{file['id']}/content", follow_redirects=False)
    assert (told.status_code, told.headers["content-length"]) == (200, str(len(content))), "a URL of a GET refuses HEAD"
    unchanged = tenant.get(f"/v1/files/{file['id']}/content", headers={"If-None-Match": f'"{file["sha256"]}"'})
    assert unchanged.status_code == 304
    assert new_tenant().get(f"/v1/files/{file['id']}/content", follow_redirects=False).status_code == 404


def test_an_adapter_is_downloaded_by_file_and_as_an_archive(tenant, new_tenant, won):
    task_id, adapter_id = won
    for path, content in FILES.items():
        answer = tenant.get(f"/v1/adapters/{adapter_id}/files/{path}", follow_redirects=False)
        assert presigned(answer) == content
    for path in (f"adapters/{adapter_id}/archive", f"tasks/{task_id}/adapter"):
        answer = tenant.get(f"/v1/{path}", follow_redirects=False)
        assert unpack(presigned(answer)) == {f"{adapter_id}/{name}": content for name, content in FILES.items()}
        assert f"{adapter_id}.tar.gz?" in answer.headers["location"]
        told = tenant.request("HEAD", f"/v1/{path}", follow_redirects=False)
        assert (told.status_code, told.headers["content-length"]) == (200, str(len(presigned(answer))))
        assert new_tenant().get(f"/v1/{path}", follow_redirects=False).status_code == 404


def test_rows_are_read_back_for_a_preview_and_a_validation(tenant, app):
    from_storage = app.state.motet.storage.open(tenant.upload(LARGE).json()["sha256"])
    assert sum(1 for _ in from_storage) == 12


def test_what_is_deleted_is_erased_by_the_next_sweep_a_day_later(tenant, database, storage, monkeypatch):
    own = {"adapter_config.json": os.urandom(30), "adapter_model.safetensors": os.urandom(3000)}
    task_id = tenant.task()["id"]
    with database.begin() as session:
        adapter(session, storage, jobs_of(session, task_id)[0], own)
        session.execute(update(Task).where(Task.id == task_id).values(status="cancelled"))
    monkeypatch.setattr(garbage_collection, "_BATCH", 3)
    gone, stays = (tenant.upload(jsonl(PAIR | {"prompt": name})).json() for name in ("gone", "stays"))
    assert tenant.delete(f"/v1/files/{gone['id']}").status_code == 204
    assert tenant.delete(f"/v1/tasks/{task_id}").status_code == 204
    sweep(database, storage, Retention(deleted=timedelta(0)))
    assert storage.exists(gone["sha256"]), "it may still be an upload that nobody reported yet"
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + garbage_collection.KEPT_SECONDS + 60)
    assert sweep(database, storage, Retention(deleted=timedelta(0))) >= 1 + len(own)
    assert (storage.exists(gone["sha256"]), storage.exists(stays["sha256"])) == (False, True)
    assert not any(storage.exists(hashlib.sha256(content).hexdigest()) for content in own.values())


def test_a_bucket_that_hangs_or_is_gone_is_said_and_may_be_tried_again(
    serve, settings_for, new_database_url, tmp_path, credentials
):
    with object_server("localbucket", tmp_path) as server:
        changes = server.settings(storage_timeout_seconds=5, storage_retries=0)
        caller = serve(settings_for(new_database_url, tmp_path, **changes))
        file = caller.upload(jsonl(PAIR)).json()
        with server.hung():
            refused = [caller.get(f"/v1/files/{file['id']}/content"), caller.upload(jsonl(PAIR | {"prompt": "other"}))]
            for answer in refused:
                assert (answer.status_code, answer.json()["code"]) == (503, "storage_unavailable"), answer.text
                assert int(answer.headers["retry-after"]) > 0
            assert caller.get("/v1/files").status_code == 200, "what needs no storage goes on"
            found = caller.get("/v1/admin/storage").json()
            assert (found["may_pass"], found["kind"]) == (True, "s3")
    assert caller.get("/v1/admin/storage").json()["problem"]


def test_a_bucket_that_is_missing_is_not_taken_for_missing_objects(storage_with, moto):
    moto.bucket, before = "no-such-bucket", moto.bucket
    try:
        bucket = storage_with(**moto.settings())
    finally:
        moto.bucket = before
    for ask in (lambda: bucket.size("0" * 64), lambda: put(bucket, b"x"), lambda: list(bucket.keys()), bucket.check):
        with pytest.raises(StorageRefused, match="NoSuchBucket"):
            ask()


def test_wrong_credentials_are_refused_in_words(storage_with, tmp_path, credentials):
    with object_server("moto", tmp_path, INITIAL_NO_AUTH_ACTION_COUNT="1") as server:  # the first call makes the bucket
        bucket = storage_with(**server.settings())
        with pytest.raises(StorageRefused, match=r"refuses what the service asks.*InvalidAccessKeyId"):
            put(bucket, b"x")
        with pytest.raises(StorageRefused, match="credentials"):
            bucket.exists("0" * 64)


def test_a_server_that_is_not_there_is_away(storage_with, free_port):
    nowhere = {"storage_url": "s3://bucket/x", "storage_endpoint": f"http://127.0.0.1:{free_port()}", "storage_retries": 0}
    bucket = storage_with(storage_dir=None, storage_region="us-east-1", **nowhere)
    with pytest.raises(StorageAway, match="does not answer"):
        bucket.check()
    with pytest.raises(StorageAway, match="has just not answered"):
        bucket.check()


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"MOTET_STORAGE_URL": "ftp://bucket"}, "MOTET_STORAGE_URL"),
        ({"MOTET_STORAGE_URL": "s3://bucket", "MOTET_STORAGE_ENDPOINT": "minio:9000"}, "MOTET_STORAGE_ENDPOINT"),
        ({"MOTET_STORAGE_URL": "s3://bucket", "MOTET_STORAGE_ENCRYPTION": "rot13"}, "MOTET_STORAGE_ENCRYPTION"),
        ({"MOTET_STORAGE_URL": "s3://bucket", "MOTET_STORAGE_KMS_KEY": "key"}, "needs MOTET_STORAGE_ENCRYPTION=aws:kms"),
        ({"MOTET_STORAGE_URL": "s3://bucket", "MOTET_DOWNLOAD_OFFLOAD": "x-sendfile"}, "MOTET_DOWNLOAD_OFFLOAD is for"),
        ({"MOTET_STORAGE_ENDPOINT": "http://minio:9000"}, "MOTET_STORAGE_ENDPOINT needs MOTET_STORAGE_URL"),
        ({"MOTET_DOWNLOAD_OFFLOAD": "nginx"}, "MOTET_DOWNLOAD_OFFLOAD"),
    ],
)
def test_settings_that_do_not_agree_are_named(settings_for, database_url, tmp_path, environment_of, changes, says):
    environment = environment_of(settings_for(database_url, tmp_path)) | changes
    command = [sys.executable, "-m", "service", "api"]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (ended.returncode, says in ended.stderr) == (1, True), ended.stderr


@pytest.mark.parametrize(
    ("offload", "header"),
    [
        ("x-accel-redirect:/objects/", ("X-Accel-Redirect", "/objects/{0:.2}/{0}")),
        ("x-sendfile", ("X-Sendfile", "{1}/{0:.2}/{0}")),
    ],
)
def test_a_proxy_is_told_to_send_files_of_this_machine(serve, settings_for, new_database_url, tmp_path, offload, header):
    caller = serve(settings_for(new_database_url, tmp_path, download_offload=offload))
    file = caller.upload(jsonl(PAIR)).json()
    answer = caller.get(f"/v1/files/{file['id']}/content")
    name, value = header
    assert (answer.status_code, answer.content) == (200, b"")
    assert answer.headers[name] == value.format(file["sha256"], tmp_path / "storage" / "objects")
    assert (tmp_path / "storage" / "objects" / file["sha256"][:2] / file["sha256"]).read_bytes() == jsonl(PAIR)
