"""`python -m service move-storage`: from a folder to a bucket and back, resumed, verified; damaged objects are named."""

import io
import subprocess
import sys

import pytest

from service.storage.connect import storage_at
from service.storage.local_storage import LocalStorage
from service.storage.storage_move import copy_all
from service.storage.upload_grants import UploadGrants
from tests.service.storage.test_contract import LARGE, SMALL, put, sha_of


@pytest.fixture
def run(settings_for, database_url, tmp_path, environment_of, moto, credentials):
    def moved(url: str | None = None, **changes: object) -> subprocess.CompletedProcess[str]:
        where = moto.settings(storage_dir=tmp_path / "storage", storage_url=None, storage_move_to=url)
        environment = environment_of(settings_for(database_url, tmp_path, **where | changes))
        command = [sys.executable, "-m", "service", "move-storage"]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

    return moved


def test_objects_go_to_a_bucket_and_a_second_run_brings_what_came_meanwhile(run, storage_with, moto, tmp_path):
    folder, url = storage_with(), f"s3://{moto.bucket}/{tmp_path.name}"
    for data in (SMALL, LARGE, b""):
        put(folder, data)
    first = run(url)
    assert (first.returncode, first.stdout.splitlines()[0]) == (
        0,
        f"copied 3 objects, {len(SMALL) + len(LARGE)} bytes, to {url}; 0 were there already",
    ), first.stderr
    bucket = storage_with(**moto.settings(prefix=tmp_path.name))
    with bucket.open(sha_of(LARGE)) as source:
        assert source.read() == LARGE
    put(folder, b"stored meanwhile")
    folder.path(sha_of(SMALL)).write_bytes(b"some rot..")
    bucket.delete(sha_of(SMALL))
    second = run(url)
    assert (second.returncode, second.stdout.splitlines()[0].startswith("copied 1 objects, 16 bytes")) == (1, True)
    assert f"1 objects are damaged and were not copied: {sha_of(SMALL)}" in second.stderr
    assert (bucket.exists(sha_of(SMALL)), bucket.exists(sha_of(b"stored meanwhile"))) == (False, True)
    back = LocalStorage(tmp_path / "back", UploadGrants("s" * 32))
    assert copy_all(bucket, back).copied == 3
    assert back.open(sha_of(LARGE)).read() == LARGE


def test_a_move_to_nowhere_is_refused_in_one_line(run, storage_with, tmp_path, free_port):
    assert "MOTET_STORAGE_MOVE_TO is not set" in run(storage_endpoint=None).stderr
    here = run(f"file://{tmp_path / 'storage'}", storage_endpoint=None)
    assert (here.returncode, "where the objects are" in here.stderr) == (1, True)
    wrong = run("s3://[x@bucket", storage_endpoint=None)
    assert (wrong.returncode, "MOTET_STORAGE_MOVE_TO 's3://" in wrong.stderr) == (1, True), wrong.stderr
    away = run("s3://bucket", storage_endpoint=f"http://127.0.0.1:{free_port()}", storage_retries=0)
    assert (away.returncode, "storage: Storage does not answer" in away.stderr) == (1, True)
    assert "Traceback" not in away.stderr


def test_what_is_removed_while_it_is_copied_is_passed_over(storage_with, tmp_path, settings_for, database_url, database):
    folder = storage_with()
    for data in (SMALL, b"other"):
        put(folder, data)

    class Source:
        def keys(self):
            return iter(list(folder.keys()))

        def open(self, sha256: str) -> io.BufferedReader:
            folder.delete(sha_of(SMALL))
            return folder.open(sha256)

    to = storage_at(f"file://{tmp_path / 'to'}", settings_for(database_url, tmp_path), database, "MOTET_STORAGE_MOVE_TO")
    assert copy_all(Source(), to).copied == 1
    assert to.exists(sha_of(b"other"))
